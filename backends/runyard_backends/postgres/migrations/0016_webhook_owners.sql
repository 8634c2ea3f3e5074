-- The tenant that sees a delivery: the tenant of its event, or '' for a delivery to a webhook that receives the events of all tenants.
ALTER TABLE runyard.webhook_deliveries ADD COLUMN owner text NOT NULL DEFAULT '';
UPDATE runyard.webhook_deliveries d SET owner = d.tenant
WHERE d.tenant <> '' AND (d.webhook_id IS NULL OR EXISTS (
    SELECT 1 FROM runyard.webhooks w WHERE w.webhook_id = d.webhook_id AND w.tenant IS NOT NULL));
DROP INDEX runyard.webhook_deliveries_of_tenant, runyard.webhook_deliveries_failed, runyard.webhook_deliveries_delivered,
    runyard.webhook_deliveries_pending;
CREATE INDEX webhook_deliveries_of_owner ON runyard.webhook_deliveries (owner, delivery_no);
CREATE INDEX webhook_deliveries_failed ON runyard.webhook_deliveries (owner, delivery_no) WHERE failed_at IS NOT NULL;
CREATE INDEX webhook_deliveries_delivered ON runyard.webhook_deliveries (owner, delivery_no) WHERE delivered_at IS NOT NULL;
CREATE INDEX webhook_deliveries_pending ON runyard.webhook_deliveries (owner, delivery_no) WHERE next_at IS NOT NULL;
