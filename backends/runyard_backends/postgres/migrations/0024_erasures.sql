-- The erasures of branches that forks show. A worker keeps histories in memory, and compares these numbers before it uses them.

-- steps: the number of transactions that replaced messages of the branch by tombstones.
CREATE TABLE runyard.erasures (
    branch_id bigint NOT NULL,
    steps bigint NOT NULL,
    CONSTRAINT erasures_pkey PRIMARY KEY (branch_id)
);
