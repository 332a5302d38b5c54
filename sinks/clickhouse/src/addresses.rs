//! The addresses of ClickHouse, of which one is in use. If its server is unavailable, another address takes over,
//! between requests and never within an attempt (`design/clickhouse-sink.md`, "Several addresses").

use crate::client::Client;
use crate::config::Config;
use crate::node::Node;
use crate::same;
use crate::settings;
use millpond_consumer::SinkError;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::Mutex;
use tracing::{error, warn};

/// The maximum time to check one of several addresses: a frozen server accepts connections and answers nothing.
const CHECK_MAX: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AddressLabel {
    address: String,
}

/// An address.
pub(crate) struct Address {
    /// The address as configured.
    given: String,
    /// The address without parameters.
    pub(crate) url: String,
    /// A client for a server that may never have been checked.
    pub(crate) client: Client,
}

/// The addresses, and the one in use.
pub(crate) struct Addresses {
    config: Config,
    all: Vec<Address>,
    state: RwLock<State>,
    /// The last warning about each address. The task that looks for another address holds the lock.
    moving: Mutex<Vec<String>>,
    failovers: Counter,
    gauge: Family<AddressLabel, Gauge>,
}

struct State {
    in_use: usize,
    /// The checked addresses, including the one in use.
    nodes: Vec<Option<Arc<Node>>>,
}

impl State {
    fn node(&self) -> Arc<Node> {
        let node = self.nodes[self.in_use].as_ref();
        node.expect("the address in use has been checked").clone()
    }
}

impl Addresses {
    /// Checks all addresses, and uses the first that answers.
    ///
    /// # Errors
    /// `Schema` if an address that answers does not fit, or has different tables than the others; `Transient` if no
    /// address answers.
    pub(crate) async fn open(config: Config) -> Result<Self, SinkError> {
        let address = |given: &String| {
            let (url, client) = settings::client(&config, given)?;
            let given = given.clone();
            Ok(Address { given, url, client })
        };
        let all: Vec<Address> = config
            .urls
            .iter()
            .map(address)
            .collect::<Result<_, SinkError>>()?;
        for (place, address) in all.iter().enumerate() {
            if all[..place].iter().any(|before| before.url == address.url) {
                return Err(SinkError::Schema(format!(
                    "ClickHouse's address {} is given twice",
                    address.url
                )));
            }
        }
        let mut nodes: Vec<Option<Arc<Node>>> = Vec::with_capacity(all.len());
        let mut away = Vec::new();
        for address in &all {
            let first = nodes.iter().flatten().next().cloned();
            match check(&config, address, config.create, first.as_deref()).await {
                Ok(node) => nodes.push(Some(Arc::new(node))),
                Err(SinkError::Transient(reason)) => {
                    away.push(reason);
                    nodes.push(None);
                }
                Err(error) => return Err(error),
            }
        }
        let Some(in_use) = nodes.iter().position(Option::is_some) else {
            return Err(match away.is_empty() {
                true => SinkError::Schema("there is no address of ClickHouse".to_owned()),
                false => SinkError::Transient(away.join("; ")),
            });
        };
        for reason in away {
            warn!("{reason}; the consumer starts without this address");
        }
        let addresses = Addresses {
            moving: Mutex::new(vec![String::new(); all.len()]),
            config,
            all,
            state: RwLock::new(State { in_use, nodes }),
            failovers: Counter::default(),
            gauge: Family::default(),
        };
        addresses.show(in_use);
        Ok(addresses)
    }

    pub(crate) fn register_metrics(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("millpond_clickhouse");
        registry.register(
            "failovers",
            "Changes to another address of ClickHouse",
            self.failovers.clone(),
        );
        registry.register(
            "address_in_use",
            "1 for the address of ClickHouse in use, 0 for the others",
            self.gauge.clone(),
        );
    }

    /// The addresses other than this one.
    pub(crate) fn others(&self, url: &str) -> impl Iterator<Item = &Address> {
        self.all.iter().filter(move |address| address.url != url)
    }

    /// Returns the node in use, even if its server is unavailable.
    pub(crate) fn in_use(&self) -> Arc<Node> {
        self.state.read().unwrap_or_else(PoisonError::into_inner).node()
    }

    fn place(&self) -> usize {
        self.state.read().unwrap_or_else(PoisonError::into_inner).in_use
    }

    fn use_address(&self, place: usize, node: Arc<Node>) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        state.nodes[place] = Some(node);
        state.in_use = place;
    }

    /// Returns every checked node.
    pub(crate) fn checked(&self) -> Vec<Arc<Node>> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        state.nodes.iter().flatten().cloned().collect()
    }

    /// Returns the node for the next request. Looks for another address if the current server is unavailable, and
    /// retries the current one if it finds none.
    pub(crate) async fn node(&self) -> Arc<Node> {
        let node = self.in_use();
        if self.all.len() == 1 || node.server.away().is_none() {
            return node;
        }
        let mut complaints = self.moving.lock().await;
        // Another task may have moved meanwhile.
        let node = self.in_use();
        let Some(reason) = node.server.away() else {
            return node;
        };
        let from = self.place();
        for step in 1..self.all.len() {
            let to = (from + step) % self.all.len();
            match self.usable(to, &node).await {
                Ok(other) => {
                    warn!(
                        "ClickHouse at {} is away ({reason}); {} takes its place",
                        node.server.url, other.server.url
                    );
                    other.server.is_back();
                    self.use_address(to, other.clone());
                    self.failovers.inc();
                    self.show(to);
                    complaints.fill(String::new());
                    return other;
                }
                Err(error) => complain(&mut complaints[to], &error),
            }
        }
        node.server.is_back();
        node
    }

    /// Returns the node at this place if it is usable now. Compares its tables each time: since the last check somebody
    /// may have replaced the server or recreated its tables.
    async fn usable(&self, place: usize, ours: &Node) -> Result<Arc<Node>, SinkError> {
        let address = &self.all[place];
        let checked = check(&self.config, address, false, Some(ours)).await?;
        in_time(&address.url, checked.server.check_writable()).await?;
        Ok(Arc::new(checked))
    }

    fn show(&self, in_use: usize) {
        for (place, address) in self.all.iter().enumerate() {
            let label = AddressLabel {
                address: address.url.clone(),
            };
            self.gauge.get_or_create(&label).set(i64::from(place == in_use));
        }
    }
}

/// Logs a complaint unless it is the last one.
fn complain(last: &mut String, error: &SinkError) {
    let reason = error.to_string();
    if reason == *last {
        return;
    }
    match error {
        SinkError::Transient(_) => warn!("{reason}"),
        SinkError::Schema(_) | SinkError::Refused(_) => error!("{reason}"),
    }
    *last = reason;
}

/// Opens an address, and compares its tables with those of `ours`.
async fn check(
    config: &Config,
    address: &Address,
    create: bool,
    ours: Option<&Node>,
) -> Result<Node, SinkError> {
    let opening = Node::open(config, &address.given, create);
    if !config.has_several_urls() {
        return opening.await;
    }
    let theirs = in_time(&address.url, opening).await?;
    let Some(ours) = ours else {
        return Ok(theirs);
    };
    let (Some(our_tables), Some(their_tables)) = (&ours.same, &theirs.same) else {
        return Ok(theirs);
    };
    let (our_url, their_url) = (&ours.server.url, &theirs.server.url);
    if let Some(fault) = same::difference(our_url, our_tables, their_url, their_tables) {
        return Err(SinkError::Schema(fault));
    }
    for view in same::views_of_one(our_tables, their_tables) {
        warn!(
            "only one of {our_url} and {their_url} has the materialized view {view}: rows that are written through the other one do not reach it"
        );
    }
    Ok(theirs)
}

/// A frozen server must not hold up the others.
async fn in_time<T>(url: &str, work: impl Future<Output = Result<T, SinkError>>) -> Result<T, SinkError> {
    let outcome = tokio::time::timeout(CHECK_MAX, work).await;
    outcome.unwrap_or_else(|_| {
        Err(SinkError::Transient(format!(
            "checking ClickHouse at {url}: no answer within {} s",
            CHECK_MAX.as_secs()
        )))
    })
}
