//! The listeners: accept connections, close the slowest one when there is no room for another, and drain them on
//! shutdown. They never refuse a plaintext connection for lack of memory: the gateway refuses requests instead, where
//! it can give a reason. TLS needs memory before it can answer at all.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use millpond_producer::Producers;
use prometheus_client::registry::Registry;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::Config;
use crate::connection::{self, Arrival, Tasks};
use crate::connections::{Connections, Room};
use crate::entrance::{Entrance, H2, HTTP1, Refused};
use crate::kafka::{self, Kafka, KafkaConfig};
use crate::metrics::{Metrics, Transport};
use crate::request::Service;
use crate::security::Security;
use crate::throttled_warnings::ThrottledWarnings;

/// Pause of accepting when the system refuses (usually out of file descriptors), to let connections close.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Time for clients to read their last answers and close, once all requests are answered.
const GOODBYE: Duration = Duration::from_secs(1);

/// Interval at which a drain checks for requests in flight.
const DRAIN_POLL: Duration = Duration::from_millis(10);

/// Why a gateway stopped without a clean drain.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A listener's socket is unusable.
    #[error("listening for OTLP: {0}")]
    Listener(#[source] io::Error),
    /// The drain timeout passed. The remaining requests got no answer: their clients will send them again.
    #[error("{requests} requests still in flight after {} s of draining; their clients will retry", after.as_secs_f32())]
    DrainTimeout {
        /// The number of interrupted requests.
        requests: usize,
        /// The drain timeout.
        after: Duration,
    },
}

/// The sockets for clients.
#[derive(Debug)]
pub struct Listeners {
    /// For OTLP/gRPC: HTTP/2.
    pub grpc: TcpListener,
    /// For OTLP/HTTP: HTTP/1.1, and HTTP/2 by prior knowledge.
    pub http: TcpListener,
    /// For Kafka's clients, if they are served.
    pub kafka: Option<(TcpListener, KafkaConfig)>,
}

/// The protocol of a port.
#[derive(Clone)]
enum Port {
    Grpc,
    Http,
    Kafka(Arc<Kafka>),
}

impl Port {
    fn transport(&self) -> Transport {
        match self {
            Port::Grpc => Transport::Grpc,
            Port::Http => Transport::Http,
            Port::Kafka(_) => Transport::Kafka,
        }
    }

    /// The protocols that clients may choose in the TLS handshake, by ALPN name.
    fn protocols(&self) -> &'static [&'static [u8]] {
        match self {
            Port::Grpc => &[H2],
            Port::Http => &[H2, HTTP1],
            Port::Kafka(_) => &[],
        }
    }
}

/// OTLP in front of a process's producers.
pub struct Gateway {
    producers: Producers,
    config: Config,
    metrics: Arc<Metrics>,
    service: Arc<Service>,
    entrance: Arc<Entrance>,
    throttled_warnings: Arc<ThrottledWarnings>,
    connections: Connections,
    tasks: Tasks,
}

impl Gateway {
    /// Creates a gateway that does not serve yet. Registers its metrics, `millpond_gateway_*`, at once.
    pub fn new(
        producers: Producers,
        config: Config,
        security: Arc<Security>,
        registry: &mut Registry,
    ) -> Gateway {
        let metrics = Metrics::register(registry);
        let throttled_warnings = Arc::<ThrottledWarnings>::default();
        let service = Arc::new(Service::new(
            producers.clone(),
            &config,
            Arc::clone(&security),
            Arc::clone(&metrics),
            Arc::clone(&throttled_warnings),
        ));
        let entrance = Entrance::new(security, producers.budget(), config.handshake_timeout);
        let tasks = Tasks {
            tracker: TaskTracker::new(),
            drain: CancellationToken::new(),
            kill: CancellationToken::new(),
        };
        Gateway {
            producers,
            connections: Connections::new(config.max_connections),
            config,
            metrics,
            service,
            entrance: Arc::new(entrance),
            throttled_warnings,
            tasks,
        }
    }

    /// Serves until `shutdown`, then stops accepting and finishes the requests in flight. It leaves the producers open:
    /// drain them afterwards. Dropping the future interrupts all requests.
    ///
    /// # Errors
    /// [`Error::Listener`] if a socket is unusable; [`Error::DrainTimeout`] if requests were interrupted.
    pub async fn serve(self, listeners: Listeners, shutdown: CancellationToken) -> Result<(), Error> {
        let _kill = self.tasks.kill.clone().drop_guard();
        let Listeners { grpc, http, kafka } = listeners;
        let mut ports = vec![(grpc, Port::Grpc), (http, Port::Http)];
        ports.extend(kafka.map(|(listener, config)| {
            let kafka = Kafka::new(config, self.producers.buffer_id());
            (listener, Port::Kafka(Arc::new(kafka)))
        }));
        for (listener, _) in &ports {
            listener.local_addr().map_err(Error::Listener)?;
        }
        let accepting = ports.into_iter();
        join_all(accepting.map(|(listener, port)| self.accept_all(listener, port, &shutdown))).await;
        self.drain().await
    }

    async fn accept_all(&self, listener: TcpListener, port: Port, shutdown: &CancellationToken) {
        loop {
            let accepted = tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                accepted = async {
                    let room = self.connections.room().await;
                    listener.accept().await.map(|(stream, peer)| (stream, peer, room))
                } => accepted,
            };
            match accepted {
                Ok((stream, peer, room)) => self.accept(stream, peer, port.clone(), room),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn accept(&self, stream: TcpStream, peer: SocketAddr, port: Port, room: Room) {
        let transport = port.transport();
        let counted = Counted::new(&self.metrics, transport);
        let (metrics, throttled_warnings) = (Arc::clone(&self.metrics), Arc::clone(&self.throttled_warnings));
        let refuse = move |refused: &Refused| {
            metrics.refused(transport, refused);
            if refused.is_worth_a_look() {
                throttled_warnings.warn(refused.name(), peer, format_args!("connection closed: {refused}"));
            } else {
                tracing::debug!(%peer, reason = %refused, "connection closed");
            }
        };
        let Some(connection) = self.connections.admit(peer.ip(), room) else {
            return refuse(&Refused::TooMany);
        };
        let (service, config, entrance) = (
            Arc::clone(&self.service),
            self.config.clone(),
            Arc::clone(&self.entrance),
        );
        let (budget, tasks) = (self.producers.budget().clone(), self.tasks.clone());
        self.tasks.spawn(async move {
            let seat = connection.seat();
            let served = async {
                let local = stream.local_addr()?;
                let (link, _held) = entrance.enter(stream, port.protocols(), &seat).await?;
                if let Port::Kafka(kafka) = &port {
                    let session = kafka::Session {
                        kafka,
                        service: &service,
                        config: &config,
                        seat: seat.clone(),
                        local,
                    };
                    return kafka::serve(session, link, &tasks).await;
                }
                let arrival = Arrival {
                    link,
                    peer,
                    seat: seat.clone(),
                    transport,
                    nth: connection.nth(),
                };
                connection::serve(arrival, service, &config, &budget, tasks).await
            };
            let served = connection.until_closed(served).await;
            if let Err(refused) = served.unwrap_or(Err(Refused::Evicted)) {
                refuse(&refused);
            }
            drop((connection, counted));
        });
    }

    /// Waits until all requests are answered and all connections closed. Connections get [`GOODBYE`] after the last
    /// answer, so that a client that does not close its side does not delay the shutdown.
    async fn drain(&self) -> Result<(), Error> {
        self.tasks.drain.cancel();
        self.tasks.tracker.close();
        let after = self.config.drain_timeout;
        let began = Instant::now();
        let mut idle_since = None;
        let cut_off = loop {
            if self.tasks.tracker.is_empty() {
                return Ok(());
            }
            match self.service.in_flight() {
                0 if idle_since.get_or_insert_with(Instant::now).elapsed() >= GOODBYE => break None,
                0 => {}
                requests if began.elapsed() >= after => break Some(requests),
                _ => idle_since = None,
            }
            sleep(DRAIN_POLL).await;
        };
        self.tasks.kill.cancel();
        self.tasks.tracker.wait().await;
        cut_off.map_or(Ok(()), |requests| Err(Error::DrainTimeout { requests, after }))
    }
}

/// An open connection in the metrics, until dropped.
struct Counted {
    metrics: Arc<Metrics>,
    transport: Transport,
}

impl Counted {
    fn new(metrics: &Arc<Metrics>, transport: Transport) -> Counted {
        metrics.connected(transport);
        Counted {
            metrics: Arc::clone(metrics),
            transport,
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.metrics.disconnected(self.transport);
    }
}
