//! The HTTP server of a service's status: a page for people at `/`, `/healthz`, `/readyz`, `/metrics`.

mod history;
mod server;

use crate::events;
use anyhow::Context;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use history::History;
use millpond_gateway::Connections;
use millpond_runtime::{Environment as _, Readiness, SystemEnvironment};
use millpond_storage::BufferUrl;
use millpond_telemetry::Registries;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::registry::Registry;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::net::TcpListener;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Maximum file descriptors of the server.
pub(crate) const ADMIN_DESCRIPTORS: usize = Connections::descriptors(server::CONNECTIONS_MAX);

/// The state behind the server's answers. The service fills it as it starts.
#[derive(Clone)]
pub(crate) struct Admin(Arc<Inner>);

/// The service that the page shows.
#[derive(Debug, serde::Serialize)]
struct About {
    /// The kind of service.
    role: &'static str,
    /// The buffer's URL.
    buffer: String,
    version: &'static str,
    /// Unix ms.
    started_at_ms: u64,
}

struct Inner {
    about: About,
    registries: Registries,
    /// `None`: the service is starting.
    readiness: Mutex<Option<Readiness>>,
    history: Mutex<History>,
}

impl Admin {
    /// Serves until the process ends. Returns the address. `role` and `buffer` are for people.
    pub(crate) async fn start(
        address: SocketAddr,
        role: &'static str,
        buffer: &BufferUrl,
    ) -> anyhow::Result<(Admin, SocketAddr)> {
        let admin = Admin(Arc::new(Inner {
            about: About {
                role,
                buffer: buffer.to_string(),
                version: env!("CARGO_PKG_VERSION"),
                started_at_ms: SystemEnvironment.now_ms(),
            },
            registries: Registries::default(),
            readiness: Mutex::default(),
            history: Mutex::default(),
        }));
        let router = Router::new()
            .route("/", get(page))
            .route("/page.js", get(script))
            .route("/status.json", get(status))
            .route("/history.json", get(history))
            .route("/healthz", get(|| async { "ok\n" }))
            .route("/readyz", get(ready))
            .route("/metrics", get(metrics))
            .with_state(admin.clone());
        let listener = TcpListener::bind(address).await.with_context(|| {
            format!(
                "cannot listen on {address} for the status page, /healthz, /readyz and /metrics (--admin)"
            )
        })?;
        let address = listener.local_addr()?;
        tokio::spawn(server::serve(listener, router));
        tokio::spawn(sample(Arc::downgrade(&admin.0)));
        Ok((admin, address))
    }

    /// Adds metrics to `/metrics`.
    pub(crate) fn show(&self, registry: Registry) {
        self.0.registries.add(registry);
    }

    /// The metrics of `/metrics`.
    pub(crate) fn registries(&self) -> &Registries {
        &self.0.registries
    }

    fn waiting_for(&self) -> Vec<String> {
        let readiness = self.0.readiness.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = readiness.as_ref().map(Readiness::waiting_for);
        waiting.unwrap_or_else(|| vec!["starting".to_owned()])
    }

    /// Sets the source of the service's readiness.
    pub(crate) fn reports(&self, readiness: Readiness) {
        *self.0.readiness.lock().unwrap_or_else(PoisonError::into_inner) = Some(readiness);
    }
}

/// Samples the metrics for the charts of the page until the server is gone.
async fn sample(admin: Weak<Inner>) {
    let (began, mut ticks) = (Instant::now(), interval(history::EVERY));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(admin) = admin.upgrade() else { return };
        let mut history = admin.history.lock().unwrap_or_else(PoisonError::into_inner);
        admin
            .registries
            .read(|registries| history.sample(registries, began.elapsed()));
    }
}

async fn ready(State(admin): State<Admin>) -> Response {
    let waiting = admin.waiting_for();
    if waiting.is_empty() {
        (StatusCode::OK, "ready\n".to_owned()).into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, waiting.join("\n") + "\n").into_response()
    }
}

/// The page loads nothing from other servers, and a policy enforces this in the browser.
async fn page() -> Response {
    let policy = "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'unsafe-inline'";
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, policy),
    ];
    (headers, include_str!("admin/page.html")).into_response()
}

async fn script() -> Response {
    let kind = "text/javascript; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], include_str!("admin/page.js")).into_response()
}

async fn status(State(admin): State<Admin>) -> Response {
    #[derive(serde::Serialize)]
    struct Status<'a> {
        #[serde(flatten)]
        about: &'a About,
        waiting_for: Vec<String>,
        events: Vec<events::Recent>,
    }
    axum::Json(Status {
        about: &admin.0.about,
        waiting_for: admin.waiting_for(),
        events: events::recent(),
    })
    .into_response()
}

async fn history(State(admin): State<Admin>) -> Response {
    #[derive(serde::Serialize)]
    struct Charts {
        every_seconds: u64,
        charts: Vec<history::Shown>,
    }
    let history = admin.0.history.lock().unwrap_or_else(PoisonError::into_inner);
    axum::Json(Charts {
        every_seconds: history::EVERY.as_secs(),
        charts: history.charts(),
    })
    .into_response()
}

async fn metrics(State(admin): State<Admin>) -> Response {
    let mut text = String::new();
    let encoded = admin
        .registries()
        .read(|registries| registries.iter().try_for_each(|r| encode_registry(&mut text, r)))
        .and_then(|()| encode_eof(&mut text));
    match encoded {
        Ok(()) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
