//! SIGTERM and SIGINT: the first asks the command to finish its work, the second ends the command.

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// A token that the first signal cancels.
pub(crate) fn on_signal() -> anyhow::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    let token = CancellationToken::new();
    let cancel = token.clone();
    tokio::spawn(async move {
        let name = next(&mut terminate, &mut interrupt).await;
        info!("{name}: stopping; a second signal exits at once");
        cancel.cancel();
        let name = next(&mut terminate, &mut interrupt).await;
        warn!("{name} again: ending without finishing");
        std::process::exit(130);
    });
    Ok(token)
}

async fn next(terminate: &mut Signal, interrupt: &mut Signal) -> &'static str {
    tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    }
}
