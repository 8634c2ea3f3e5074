-- The indexes by owner replace the indexes by tenant.
DROP INDEX runyard.webhook_deliveries_of_tenant, runyard.webhook_deliveries_failed, runyard.webhook_deliveries_delivered,
    runyard.webhook_deliveries_pending;
