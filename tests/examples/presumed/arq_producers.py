from arq.connections import RedisSettings
from arq.jobs import Job

settings: RedisSettings
job: Job
