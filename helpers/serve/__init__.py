"""A local OpenAI-compatible server with continuous batching on the course's own decoder."""

from helpers.serve.byte_tokenizer import ByteTokenizer
from helpers.serve.engine import Engine, Overloaded, Stopped
from helpers.serve.options import Options
from helpers.serve.request import Output, Request, Sampling, Times
from helpers.serve.running import running, spawned
from helpers.serve.scheduler import Scheduler, Step

__all__ = [
    "ByteTokenizer",
    "Engine",
    "Options",
    "Output",
    "Overloaded",
    "Request",
    "Sampling",
    "Scheduler",
    "Step",
    "Stopped",
    "Times",
    "running",
    "spawned",
]
