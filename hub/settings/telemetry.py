"""Where traces go."""

from typing import Annotated

from pydantic import AfterValidator, Field

from hub.settings.group import SettingsGroup
from machinery.observability import telemetry


class Telemetry(SettingsGroup):
    """Off by default; needs the extra `tracing`."""

    trace_endpoint: Annotated[str | None, AfterValidator(lambda text: telemetry.endpoint(text) if text else None)] = Field(
        None,
        description="Collector that takes traces by OTLP over gRPC, such as http://collector:4317. Without it there are none. "
        "What OpenTelemetry reads from OTEL_EXPORTER_OTLP_* and OTEL_RESOURCE_ATTRIBUTES counts too.",
    )
    trace_share: float = Field(
        1.0,
        ge=0,
        le=1,
        description="The share of traces that is recorded. Hub and agents that have the same share record the same traces.",
    )
