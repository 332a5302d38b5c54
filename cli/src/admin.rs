//! The small HTTP server beside a long-running command: `/healthz`, `/readyz`, `/metrics`.

use anyhow::Context;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::registry::Registry;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::TcpListener;

/// What a command is waiting for; empty when it is ready.
type Readiness = Box<dyn Fn() -> Vec<String> + Send + Sync>;

/// What the server answers from. It is filled as the command starts.
#[derive(Clone, Default)]
pub(crate) struct Admin(Arc<Inner>);

#[derive(Default)]
struct Inner {
    registries: Mutex<Vec<Registry>>,
    readiness: Mutex<Option<Readiness>>,
}

impl Admin {
    /// Serves until the process ends, and says where.
    pub(crate) async fn start(address: SocketAddr) -> anyhow::Result<(Admin, SocketAddr)> {
        let admin = Admin::default();
        let router = Router::new()
            .route("/healthz", get(|| async { "ok\n" }))
            .route("/readyz", get(ready))
            .route("/metrics", get(metrics))
            .with_state(admin.clone());
        let listener = TcpListener::bind(address).await.with_context(|| {
            format!("cannot listen on {address} for /healthz, /readyz and /metrics (--admin)")
        })?;
        let address = listener.local_addr()?;
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok((admin, address))
    }

    /// Adds metrics to those that are shown.
    pub(crate) fn show(&self, registry: Registry) {
        self.0
            .registries
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(registry);
    }

    /// From now on, this says whether the command is ready.
    pub(crate) fn ready_when(&self, readiness: impl Fn() -> Vec<String> + Send + Sync + 'static) {
        *self.0.readiness.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(readiness));
    }
}

async fn ready(State(admin): State<Admin>) -> Response {
    let readiness = admin.0.readiness.lock().unwrap_or_else(PoisonError::into_inner);
    let waiting = readiness
        .as_ref()
        .map_or_else(|| vec!["starting".to_owned()], |waiting| waiting());
    if waiting.is_empty() {
        (StatusCode::OK, "ready\n".to_owned()).into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, waiting.join("\n") + "\n").into_response()
    }
}

async fn metrics(State(admin): State<Admin>) -> Response {
    let mut text = String::new();
    let registries = admin.0.registries.lock().unwrap_or_else(PoisonError::into_inner);
    let encoded = registries
        .iter()
        .try_for_each(|r| encode_registry(&mut text, r))
        .and_then(|()| encode_eof(&mut text));
    match encoded {
        Ok(()) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
