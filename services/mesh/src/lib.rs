//! What every Belay process shares: configuration, addresses, server builder, channels, telemetry, shutdown, errors.
