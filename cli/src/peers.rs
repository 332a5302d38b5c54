//! The settings for gateways that commit for each other, and the port for it.

use crate::units::{Size, address, host_and_port, size_from};
use anyhow::{Context, bail};
use millpond_manifest::manifest::ADDRESS_MAX;
use millpond_peer::{Client, Identity, Server, ServerConfig};
use millpond_producer::{NewPeering, Peering, Serving};
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::info;

/// The flags for gateways that commit for each other.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct PeerArgs {
    /// Address for other gateways of the same shard, and for consumers. One gateway leads: it commits for all, so that any number of gateways
    /// costs and waits little more than one, and tells consumers of commits. Default: off, each gateway commits for itself. Always TLS; all know
    /// each other's certificates from the buffer, and nobody has to make any.
    #[arg(long, env = "MILLPOND_PEER_LISTEN", value_name = "ADDR", value_parser = address)]
    pub(crate) peer_listen: Option<SocketAddr>,

    /// Where other gateways and consumers reach --peer-listen, for example the address of the pod. Default: the address of --peer-listen.
    #[arg(
        long,
        env = "MILLPOND_ADVERTISE",
        value_name = "HOST:PORT",
        requires = "peer_listen"
    )]
    pub(crate) advertise: Option<String>,

    /// Send the leader up to this much compressed data per segment. The leader commits larger segments, too, but each gateway uploads its
    /// own. At 256KiB per second a PUT costs as much as traffic between two zones.
    #[arg(
        long,
        env = "MILLPOND_FORWARD_BELOW",
        value_name = "SIZE",
        default_value = "256KiB",
        value_parser = size_from::<0>
    )]
    pub(crate) forward_below: Size,
}

/// A request of another gateway has its blocks and a little more.
pub(crate) const FORWARD_BELOW_MAX: usize = 1 << 20;

/// The port for other gateways, before there are producers behind it.
pub(crate) struct PeerPort {
    listener: TcpListener,
    identity: Arc<Identity>,
    advertised: Arc<str>,
    forward_below: u64,
}

impl PeerArgs {
    /// The number of connections for the port. 0: there is no port.
    pub(crate) fn connections(&self) -> usize {
        self.peer_listen
            .map_or(0, |_| ServerConfig::default().max_connections)
    }

    /// Opens the port. `None`: each gateway commits for itself.
    pub(crate) async fn open(&self) -> anyhow::Result<Option<PeerPort>> {
        let Some(address) = self.peer_listen else {
            return Ok(None);
        };
        if self.forward_below.bytes() > FORWARD_BELOW_MAX {
            bail!("--forward-below is at most 1MiB: larger segments are cheaper to upload");
        }
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| format!("cannot listen on {address} for other gateways (--peer-listen)"))?;
        let advertised = self.advertised(listener.local_addr()?)?;
        let identity = Arc::new(Identity::new()?);
        Ok(Some(PeerPort {
            listener,
            identity,
            advertised: advertised.into(),
            forward_below: self.forward_below.bytes() as u64,
        }))
    }

    fn advertised(&self, bound: SocketAddr) -> anyhow::Result<String> {
        let Some(advertised) = &self.advertise else {
            if bound.ip().is_unspecified() {
                bail!(
                    "--peer-listen {bound} does not say where other gateways reach this one: give --advertise HOST:PORT"
                );
            }
            return Ok(bound.to_string());
        };
        let is_short = advertised.len() <= ADDRESS_MAX;
        match host_and_port(advertised) {
            Ok((host, port)) if is_short => Ok(host.parse::<Ipv6Addr>().map_or_else(
                |_| advertised.clone(),
                |address| SocketAddr::from((address, port)).to_string(),
            )),
            _ => bail!("--advertise {advertised:?} is not HOST:PORT, for example 10.0.0.7:4319"),
        }
    }
}

impl PeerPort {
    /// How each producer takes part.
    pub(crate) fn peering(&self) -> NewPeering {
        let (identity, address) = (Arc::clone(&self.identity), Arc::clone(&self.advertised));
        let forward_below = self.forward_below;
        Arc::new(move || Peering {
            peers: Arc::new(Client::new(Arc::clone(&identity))),
            certificate: identity.fingerprint(),
            address: Some(Arc::clone(&address)),
            forward_below,
        })
    }

    /// Serves other gateways until `done`.
    pub(crate) fn serve(
        self,
        serving: impl Into<Serving>,
        max_connections: usize,
        done: CancellationToken,
    ) -> anyhow::Result<impl Future<Output = ()>> {
        let config = ServerConfig {
            max_connections,
            ..ServerConfig::default()
        };
        let server = Server::new(serving, &self.identity, config)
            .context("cannot use the certificate for other gateways")?;
        info!(
            "gateway: other gateways on {}, advertised as {}",
            self.listener.local_addr()?,
            self.advertised
        );
        Ok(server.serve(self.listener, done))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advertised(address: Option<&str>, bound: &str) -> Result<String, String> {
        let args = PeerArgs {
            peer_listen: None,
            advertise: address.map(str::to_owned),
            forward_below: Size(0),
        };
        args.advertised(bound.parse().unwrap())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn others_get_an_address_that_they_can_use() {
        for (given, expected) in [
            (None, "10.0.0.7:4319"),
            (Some("gateway-1.gateways:4319"), "gateway-1.gateways:4319"),
            (Some("10.0.0.8:1"), "10.0.0.8:1"),
            (Some("fd00::7:4319"), "[fd00::7]:4319"),
            (Some("[fd00::7]:4319"), "[fd00::7]:4319"),
        ] {
            assert_eq!(advertised(given, "10.0.0.7:4319").as_deref(), Ok(expected));
        }
        let long = format!("{}:1", "x".repeat(300));
        for wrong in [
            "",
            "host",
            "host:",
            ":4319",
            "host:0",
            "host:99999",
            "a:b:4319",
            &long,
        ] {
            let error = advertised(Some(wrong), "10.0.0.7:4319").unwrap_err();
            assert!(error.contains("is not HOST:PORT"), "{wrong}: {error}");
        }
        let error = advertised(None, "0.0.0.0:4319").unwrap_err();
        assert!(error.contains("give --advertise"), "{error}");
    }
}
