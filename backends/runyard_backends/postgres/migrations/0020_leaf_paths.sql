-- The function of leaves.sql returns further columns. A function with another result cannot replace it.
DROP FUNCTION IF EXISTS runyard.list_leaves(text, text, boolean, timestamptz, uuid, integer);
