"""What an operator can set: the environment, prefix `HMS_GATEWAY_`, or the command line."""

import re
import shlex
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

import platformdirs
from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from .logs import Format, Level
from .namespaces import store_name
from .problems import CallerFault

PREFIX = "HMS_GATEWAY_"
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
# What the gateway itself says to each child; an argument of the operator's would contradict it.
_OURS = (
    "--transport",
    "--data-dir",
    "--store",
    "--namespace",
    "--project",
    "--tools",
    "--read-only",
    "--max-forget",
)

_TOKEN = re.compile("[!-~]+")


class VariableInvalid(ValueError):
    """A variable that others have named, and we obey, cannot be used; the text names it."""


Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _default_data_dir() -> Path:
    return platformdirs.user_data_path("hms-memory-gateway")


def bracketed(host: str) -> str:
    """A host as it stands in a URL, where an address of IPv6 has brackets."""
    return f"[{host}]" if ":" in host else host


def same_host(host: str) -> str:
    """A host as hosts are compared: in lower case, without the dot that ends a full name."""
    return host.lower().removesuffix(".")


class Settings(BaseSettings):
    """All settings, checked; they never change while the gateway runs."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8080, ge=0, le=65_535, description="port to listen on; 0 picks a free one")
    data_dir: Path = Field(
        default_factory=_default_data_dir, description="folder that holds all stores"
    )
    hms_args: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="further arguments for each hms-mcp, quoted as in a shell"
    )
    hms_url: str | None = Field(
        None,
        pattern="^https?://[^/]",
        description="address of a shared hms-mcp to use, with its token in HMS_MCP_TOKEN",
    )
    max_connections: int = Field(64, ge=1, description="stores open at once")
    idle_seconds: Seconds = Field(300, description="time after which an unused store is closed")
    acquire_seconds: Seconds = Field(5, description="longest wait for a store to be open")
    open_seconds: Seconds = Field(30, description="longest that opening a store may take")
    call_seconds: Seconds = Field(10, description="longest that one call of the engine may take")
    drain_seconds: Seconds = Field(
        10, description="longest wait for requests under way when the gateway is told to stop"
    )
    compact_factor: float = Field(
        3,
        ge=1,
        allow_inf_nan=False,
        description="a store is compacted when it is this many times as large as when it was new",
    )
    compact_min_bytes: int = Field(
        512 << 10, ge=0, description="and this many bytes larger, so that small ones are left alone"
    )
    compact_at_once: int = Field(2, ge=1, description="stores compacted at once")
    compact_wait_seconds: Seconds = Field(
        0.25, description="longest that commands wait for a compaction"
    )
    forget_seconds: float = Field(
        86_400,
        ge=0,
        allow_inf_nan=False,
        description="time after which what was edited or deleted is gone from the disk, too; "
        "0: before the command is answered",
    )
    previous_passphrase: SecretStr | None = Field(
        None,
        description="passphrase that HMS_MCP_PASSPHRASE replaces, empty if stores were not "
        "encrypted: each is rewritten when it is next opened",
    )
    max_body_bytes: int = Field(1 << 20, ge=1_024, description="largest request body")
    max_file_bytes: int | None = Field(
        None, ge=1, description="largest file; can only lower the engine's limit"
    )
    max_view_chars: int = Field(
        16_000, ge=100, description="characters after which a view is cut, with a note"
    )
    token: SecretStr | None = Field(None, description="bearer token that every caller has to send")
    allow_unauthenticated: bool = Field(
        False, description="listen on other addresses than loopback without a token"
    )
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="further Host names to answer for, separated by commas; * for any"
    )
    default_namespace: str | None = Field(
        None, description="namespace of requests that name none: for a single user's sidecar"
    )
    log_format: Format = Field(
        "auto", description="`json`, `text`, or `auto`: text on a terminal, JSON elsewhere"
    )
    log_level: Level = Field("info", description="least logged: debug, info, warning, error")

    @field_validator("hms_args", mode="before")
    @classmethod
    def _split_arguments(cls, value: object) -> object:
        return tuple(shlex.split(value)) if isinstance(value, str) else value

    @field_validator("allowed_hosts", mode="before")
    @classmethod
    def _split_hosts(cls, value: object) -> object:
        return value.split(",") if isinstance(value, str) else value

    @field_validator("allowed_hosts")
    @classmethod
    def _as_requests_name_them(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        hosts = (same_host(host.strip()) for host in value)
        return tuple(host if host.startswith("[") else bracketed(host) for host in hosts if host)

    @field_validator("hms_args")
    @classmethod
    def _keep_ours(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if taken := next((one for one in value if one.split("=")[0].startswith(_OURS)), None):
            raise ValueError(f"{taken.split('=')[0]} is the gateway's own to set")
        return value

    @field_validator("token")
    @classmethod
    def _can_be_sent(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not _TOKEN.fullmatch(value.get_secret_value()):
            raise ValueError("a token is printable ASCII without spaces, and not empty")
        return value

    @field_validator("default_namespace")
    @classmethod
    def _is_namespace(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                store_name([value.encode()], None)
            except CallerFault as fault:
                raise ValueError(f"not a namespace. {fault}") from None
        return value

    @field_validator("data_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @model_validator(mode="after")
    def _refuse_open_door(self) -> "Settings":
        if not (self.token or self.allow_unauthenticated or self.is_loopback):
            raise ValueError(
                f"{self.host} can be reached from other machines, and there is no token. "
                f"Set {PREFIX}TOKEN, or {PREFIX}ALLOW_UNAUTHENTICATED=true if something in front "
                "of the gateway keeps strangers out."
            )
        return self

    @model_validator(mode="after")
    def _promise_what_can_be_kept(self) -> "Settings":
        if self.hms_url is not None and self.forget_seconds == 0:
            raise ValueError(
                f"{PREFIX}FORGET_SECONDS=0 cannot be promised for a shared hms-mcp, which keeps "
                "what was deleted for as long as it likes."
            )
        return self

    @property
    def url_host(self) -> str:
        """The address to listen on as it stands in a URL."""
        return bracketed(self.host)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the gateway."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False
