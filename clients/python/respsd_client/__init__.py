"""Client of respsd: `Client` for ordinary programs, `AsyncClient` for asyncio; both speak to one daemon.

with Client("127.0.0.1:7470") as client:
    print(client.generate("The capital of France is", max_new_tokens=16).text)
"""

from respsd_client.aio import AsyncClient, AsyncGenerationStream
from respsd_client.channel import DEFAULT_ADDRESS
from respsd_client.client import Client, GenerationStream
from respsd_client.credentials import Tls
from respsd_client.errors import FieldViolation, ServiceError
from respsd_client.policies import ChangeOptions
from respsd_client.policy_result import HistoryEntry, PolicyChange, PolicyDetail, PolicyFlag, PolicyFlags, PolicyInfo
from respsd_client.request import GenerateOptions, Prompt
from respsd_client.result import Chunk, GenerateResult, ModelInfo, TokenLogProb, Tokens
from respsd_client.status_result import DaemonStatus, Load, RunningRequest

__all__ = [
    "DEFAULT_ADDRESS",
    "AsyncClient",
    "AsyncGenerationStream",
    "ChangeOptions",
    "Chunk",
    "Client",
    "DaemonStatus",
    "FieldViolation",
    "GenerateOptions",
    "GenerateResult",
    "GenerationStream",
    "HistoryEntry",
    "Load",
    "ModelInfo",
    "PolicyChange",
    "PolicyDetail",
    "PolicyFlag",
    "PolicyFlags",
    "PolicyInfo",
    "Prompt",
    "RunningRequest",
    "ServiceError",
    "Tls",
    "TokenLogProb",
    "Tokens",
]
