-- Plans of stored functions are kept per connection. Made while the tables are still small they would scan them whole, and stay that way as
-- the tables grow; every statement here has its index.
DO $$
DECLARE
    verb text;
BEGIN
    FOREACH verb IN ARRAY ARRAY[
        'accept_many', 'accept_request', 'accept', 'admit', 'claim', 'context', 'append', 'start_step', 'finish_step', 'complete', 'suspend',
        'fail', 'release', 'isolate', 'bury', 'request_for', 'respond', 'cancel', 'abort_pending', 'redrive', 'explain', 'page', 'known_snapshot', 'cut',
        'leaves', 'visible', 'store_message', 'fork', 'create_thread', 'delete_thread', 'delete_run', 'erase_content', 'checkpoint_append', 'claim_external',
        'complete_external', 'save_pending', 'save_requests', 'load_requests', 'save_extra', 'update_thread', 'beat', 'queues'
    ] LOOP
        EXECUTE format('ALTER FUNCTION runyard.%I SET enable_seqscan = off', verb);
        EXECUTE format('ALTER FUNCTION runyard.%I SET jit = off', verb);
    END LOOP;
END $$;
