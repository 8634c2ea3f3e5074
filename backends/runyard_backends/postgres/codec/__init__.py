"""Conversion of rows to models, and of models to arguments of stored functions."""

from __future__ import annotations

from ...codec.message_rows import NewMessage as NewMessage
from ...codec.message_rows import many as many
from ...codec.message_rows import messages as messages
from ...codec.message_rows import new_message as new_message
from ...codec.request_rows import NewRequest as NewRequest
from ...codec.request_rows import new_request as new_request
from ...codec.request_rows import request as request
from ...codec.request_rows import request_entry as request_entry
from ...codec.thread_rows import thread as thread
from ...codec.thread_rows import thread_entry as thread_entry
from ...codec.values import Row as Row
from ...codec.values import from_json as from_json
from ...codec.values import pack as pack
from ...codec.values import to_json as to_json
from ...codec.values import unpack as unpack
from .attempt_writes import AttemptWrite as AttemptWrite
from .attempt_writes import attempt_write as attempt_write
from .attempt_writes import ended as ended
from .attempt_writes import usage_json as usage_json
from .effects_json import effects as effects
from .effects_json import job as job
from .fan_out_rows import CandidateBatch as CandidateBatch
from .fan_out_rows import candidate as candidate
from .fan_out_rows import candidate_batch as candidate_batch
from .fan_out_rows import candidate_record as candidate_record
from .fan_out_rows import usage as usage
from .ledger_rows import ledger as ledger
from .run_requests import RunRequest as RunRequest
from .run_requests import accepted_run as accepted_run
from .run_requests import cut_json as cut_json
from .run_requests import fork_json as fork_json
from .run_requests import fork_request as fork_request
from .run_requests import options_json as options_json
from .run_requests import run_request as run_request
from .run_rows import attempt_entry as attempt_entry
from .run_rows import claimed_extra as claimed_extra
from .run_rows import error_info as error_info
from .run_rows import error_json as error_json
from .run_rows import run as run
from .run_rows import run_entry as run_entry
from .run_rows import run_with_any_input as run_with_any_input
from .run_rows import step as step
from .wait_rows import new_wait as new_wait
from .wait_rows import signal as signal
