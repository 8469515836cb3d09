"""The mirror.yaml that ``mirror init`` writes."""

from __future__ import annotations

_TEMPLATE = """\
# mirror.yaml: which topics go from which Kafka cluster to which. Every key: docs/configuration.md
# Next: `mirror check` tries the connections, `mirror plan` shows what would be copied, `mirror run --once` copies.

clusters:
  {source}:
    bootstrap_servers: "{source_servers}"
    # security:                          # without it: no encryption, no login
    #   protocol: SASL_SSL               # PLAINTEXT | SSL | SASL_PLAINTEXT | SASL_SSL
    #   mechanism: SCRAM-SHA-512         # PLAIN | SCRAM-SHA-256 | SCRAM-SHA-512
    #   username: mirror
    #   password: ${{env:{secret}}}   # secrets by reference only: ${{env:NAME}} or ${{file:path}}
    #   ca_file: certs/ca.pem
  {target}:
    bootstrap_servers: "{target_servers}"

mirrors:
  - name: {source}-to-{target}
    source: {source}
    target: {target}
    topics:
      include: {include}                  # regexes on the whole topic name
      exclude: []                        # wins over include
    naming: prefix                       # prefix (orders -> {source}.orders) | identity | "{{source}}-{{topic}}"
    start: earliest                      # earliest | latest | 2026-03-01T00:00:00Z
    on_loss: halt                        # halt | record_gap

buffer:
  uri: ./mirror_buffer                   # read from the source, not yet on the target
  retention: 24h                         # kept this long after the target has it
  max_bytes: 50GB
"""


def template(
    source_servers: str = "127.0.0.1:19092",
    target_servers: str = "127.0.0.1:29092",
    *,
    source: str = "east",
    target: str = "west",
    include: tuple[str, ...] = (".*",),
) -> str:
    """A commented mirror.yaml for one mirror between two clusters.

    Args:
        source_servers: bootstrap addresses of the source, ``host:port,host:port``.
        target_servers: the same of the target.
        source: alias of the source cluster.
        target: alias of the target cluster.
        include: regexes on whole topic names.
    """
    quoted = ", ".join("'" + pattern.replace("'", "''") + "'" for pattern in include)
    return _TEMPLATE.format(
        source=source,
        target=target,
        source_servers=source_servers,
        target_servers=target_servers,
        include=f"[{quoted}]",
        secret=f"{source.upper().replace('-', '_')}_PASSWORD",
    )
