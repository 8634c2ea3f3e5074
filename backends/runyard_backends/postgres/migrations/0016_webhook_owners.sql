-- The tenant that sees a delivery, if it is not the tenant of its event: '' for a delivery to a webhook that receives the events of all
-- tenants. A row takes its owner from its webhook when it is inserted. The functions of the previous release also insert rows.
ALTER TABLE runyard.webhook_deliveries ADD COLUMN owner text;

CREATE FUNCTION runyard.choose_delivery_owner() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM runyard.webhooks w WHERE w.webhook_id = NEW.webhook_id AND w.tenant IS NOT NULL) THEN NEW.owner := ''; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER delivery_of_webhook BEFORE INSERT ON runyard.webhook_deliveries
    FOR EACH ROW WHEN (NEW.webhook_id IS NOT NULL) EXECUTE FUNCTION runyard.choose_delivery_owner();

-- The highest version of the secrets of removed webhooks, in the row with the empty id. A webhook that is made later continues after this version,
-- and after that of its own id, which only the previous release records.
CREATE TABLE runyard.removed_webhooks (
    webhook_id text PRIMARY KEY,
    version    integer NOT NULL
);
