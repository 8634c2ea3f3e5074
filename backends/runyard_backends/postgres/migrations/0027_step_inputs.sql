-- The arguments of steps, for timelines. A step that an earlier schema recorded has none.
-- input: the arguments as text, at most 300 characters; NULL for a step without arguments.
ALTER TABLE runyard.steps ADD COLUMN input text;
