-- Checkpoints of graphs: the states that a framework (LangGraph) saves for itself. docs/decisions/0031-checkpoints-of-graphs.md says why
-- they are stored in this form.

-- Lines of checkpoints. owner_key: the thread whose runs write the line, or 0 for a line that a checkpoint saver uses by itself. graph_id:
-- the saver's thread id, or the name that the first run of the line gave it. NULL marks a deleted line, which stays because copies show a
-- part of it. next_position: each write has a position, and a copy continues the positions of its source. shown_to: the highest position
-- that a copy or a mark shows; rows up to it are never replaced. holder: the last run that began or continued the line. holder_start: the
-- position at which this run began. holder_base: the last message that the state at that position contains.
CREATE TABLE runyard.graph_lines (
    line_id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant        text NOT NULL,
    owner_key     bigint NOT NULL,
    graph_id      text COLLATE "C",
    next_position bigint NOT NULL DEFAULT 1,
    shown_to      bigint NOT NULL DEFAULT 0,
    holder        text,
    holder_start  bigint NOT NULL DEFAULT 0,
    holder_base   uuid
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
CREATE UNIQUE INDEX graph_lines_id ON runyard.graph_lines (tenant, owner_key, graph_id) WHERE graph_id IS NOT NULL;
CREATE INDEX graph_lines_owner ON runyard.graph_lines (owner_key, holder) WHERE owner_key > 0;

-- The levels of a line, one per ancestor: the line shows the rows of the ancestor up to this position.
CREATE TABLE runyard.graph_levels (
    line_id     bigint NOT NULL,
    ancestor_id bigint NOT NULL,
    position    bigint NOT NULL,
    PRIMARY KEY (line_id, ancestor_id)
);
CREATE INDEX graph_levels_ancestor ON runyard.graph_levels (ancestor_id, position);

-- Checkpoints. content: the checkpoint without the values of its channels, as the saver encoded it. value_ids: the values of its
-- channels. details: its metadata. Of several rows with one id, readers take the one with the highest visible position.
CREATE TABLE runyard.graph_checkpoints (
    line_id       bigint NOT NULL,
    namespace     text COLLATE "C" NOT NULL,
    checkpoint_id text COLLATE "C" NOT NULL,
    position      bigint NOT NULL,
    parent_id     text,
    kind          text NOT NULL,
    content       bytea NOT NULL,
    details       jsonb NOT NULL,
    value_ids     bigint[] NOT NULL,
    PRIMARY KEY (line_id, namespace, checkpoint_id, position)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
CREATE INDEX graph_checkpoints_run ON runyard.graph_checkpoints ((details->>'run_id')) WHERE details ? 'run_id';

-- Values of channels. kind: NULL if the channel is empty. Either data or segments is set. segments: the parts of a list, in order, as
-- triples of a stream, the number of the first item, and the number after the last item.
CREATE TABLE runyard.graph_values (
    value_id  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    line_id   bigint NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    channel   text NOT NULL,
    version   text NOT NULL,
    position  bigint NOT NULL,
    kind      text,
    data      bytea,
    segments  bigint[]
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
CREATE INDEX graph_values_version ON runyard.graph_values (line_id, namespace, channel, version);

-- Streams: items of lists that are only appended. Only the line that made a stream appends to it. length: its number of items.
CREATE TABLE runyard.graph_streams (
    stream_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    line_id   bigint NOT NULL,
    length    bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX graph_streams_line ON runyard.graph_streams (line_id);

-- Chunks of streams. first: the number of the chunk's first item. position: the position of the write in the line.
CREATE TABLE runyard.graph_chunks (
    stream_id bigint NOT NULL,
    first     bigint NOT NULL,
    count     integer NOT NULL,
    position  bigint NOT NULL,
    items     bytea NOT NULL,
    PRIMARY KEY (stream_id, first)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);

-- Pending writes: what a task wrote after a checkpoint. Of several rows of one task and idx, readers take the one with the highest
-- visible position.
CREATE TABLE runyard.graph_writes (
    line_id       bigint NOT NULL,
    namespace     text COLLATE "C" NOT NULL,
    checkpoint_id text COLLATE "C" NOT NULL,
    task_id       text COLLATE "C" NOT NULL,
    idx           integer NOT NULL,
    position      bigint NOT NULL,
    task_path     text COLLATE "C" NOT NULL,
    channel       text NOT NULL,
    kind          text NOT NULL,
    data          bytea NOT NULL,
    PRIMARY KEY (line_id, namespace, checkpoint_id, task_id, idx, position)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);

-- Marks: the state of a graph when a message of the thread was stored (F13). base_id: the last message that the state contains, or NULL if
-- the state contains no message. This is the message itself, or an earlier message if the message is the input of a run.
CREATE TABLE runyard.graph_marks (
    thread_key bigint NOT NULL,
    message_id uuid NOT NULL,
    line_id    bigint NOT NULL,
    position   bigint NOT NULL,
    base_id    uuid,
    PRIMARY KEY (thread_key, message_id)
);
CREATE INDEX graph_marks_line ON runyard.graph_marks (line_id, position);

-- A value to store. new items of a list are appended to stream_id if it belongs to the line and has `length` items, and otherwise to a
-- new stream. In `segments`, the stream 0 stands for the new items, which are numbered from 0.
CREATE TYPE runyard.new_graph_value AS (
    channel text, version text, kind text, data bytea, segments bigint[], stream_id bigint, length bigint, counts integer[], chunks bytea[]
);
CREATE TYPE runyard.new_graph_write AS (idx integer, channel text, kind text, data bytea);
-- A value and a pending write as readers get them.
CREATE TYPE runyard.graph_value AS (channel text, kind text, data bytea, segments bigint[]);
CREATE TYPE runyard.graph_write AS (task_id text, idx integer, task_path text, channel text, kind text, data bytea);
