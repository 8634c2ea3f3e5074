-- Labels of branches. A thread has a bounded number of labels (runyard.set_label).
CREATE TABLE runyard.labels (
    thread_key bigint NOT NULL,
    label      text NOT NULL,
    branch_id  bigint NOT NULL,
    PRIMARY KEY (thread_key, label)
);
