//! Parses sizes and times as people write them: `256MiB`, `250ms`.

use bytesize::ByteSize;
pub(crate) use millpond_operate::numbers::{count, grouped, readable};
use std::fmt;
use std::net::{Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

/// A number of bytes, written as `64KiB`, `16MiB`, `1GB` or a plain number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        ByteSize::from_str(text)
            .map(|size| Size(size.0))
            .map_err(|_| format!("{text:?} is not a size: write 1048576, 64KiB, 16MiB or 1GiB"))
    }
}

impl Size {
    pub(crate) fn bytes(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

/// A size of at least `MIN` bytes.
pub(crate) fn size_from<const MIN: u64>(text: &str) -> Result<Size, String> {
    let size: Size = text.parse()?;
    if size.0 < MIN {
        // `readable` rounds; the smallest sizes are powers of 1024.
        let least = if MIN >= 1 << 20 {
            format!("{}MiB", MIN >> 20)
        } else {
            format!("{}KiB", MIN >> 10)
        };
        return Err(format!("use {least} or more"));
    }
    Ok(size)
}

/// A time above zero, such as the pause between two polls.
pub(crate) fn pause(text: &str) -> Result<Time, String> {
    match text.parse()? {
        Time(Duration::ZERO) => {
            Err("0 would mean requests without a pause: give a longer time, such as 1s".to_owned())
        }
        pause => Ok(pause),
    }
}

/// A number of workers, rows or records.
pub(crate) fn at_least_one<N: FromStr + Default + PartialOrd>(text: &str) -> Result<N, String> {
    let number = text.parse().ok().filter(|number| *number > N::default());
    number.ok_or_else(|| "write a number of 1 or more".to_owned())
}

/// An address to listen on.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "write an IP address and a port, like 127.0.0.1:4317, 0.0.0.0:4317 or [::]:4317".to_owned()
    })
}

/// The address of a host that others connect to, and its port. An IPv6 address may be without brackets, as Kubernetes gives
/// a pod's. The host has none.
pub(crate) fn host_and_port(text: &str) -> Result<(String, u16), String> {
    let parts = text.rsplit_once(':').and_then(|(host, port)| {
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_host = bare.is_some() || !host.contains(':') || host.parse::<Ipv6Addr>().is_ok();
        let host = bare.unwrap_or(host);
        let port = port.parse().ok().filter(|port| *port > 0)?;
        (is_host && (1..=HOST_MAX).contains(&host.len())).then(|| (host.to_owned(), port))
    });
    parts.ok_or_else(|| format!("{text:?} is not HOST:PORT"))
}

/// The longest name of a host (RFC 1035, 2.3.4).
const HOST_MAX: usize = 255;

/// The nearest whole number, for output.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it saturates, and people read it"
)]
pub(crate) fn whole(number: f64) -> u64 {
    number.round() as u64
}

/// A duration, written as `250ms`, `1s`, `2m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Time(pub(crate) Duration);

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        humantime::parse_duration(text)
            .map(Time)
            .map_err(|_| format!("{text:?} is not a length of time: write 250ms, 1s, 2m or 1h"))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_must_be_positive() {
        assert_eq!(pause("1s"), Ok(Time(Duration::from_secs(1))));
        assert!(pause("0s").unwrap_err().contains("without a pause"));
        assert!(pause("soon").unwrap_err().contains("250ms"));
    }

    #[test]
    fn an_address_is_an_ip_and_a_port() {
        assert!(address("[::1]:4317").is_ok());
        for wrong in ["localhost:4317", ":4317", "4317", "127.0.0.1"] {
            assert!(address(wrong).unwrap_err().contains("0.0.0.0:4317"), "{wrong}");
        }
        assert_eq!(at_least_one("3"), Ok(3_u64));
        assert!(at_least_one::<u32>("0").unwrap_err().contains("1 or more"));
    }

    #[test]
    fn others_connect_to_a_host_and_a_port() {
        for (text, host, port) in [
            ("kafka.example.com:9092", "kafka.example.com", 9092),
            ("10.0.0.7:1", "10.0.0.7", 1),
            ("[::1]:1", "::1", 1),
            ("fd00::7:9092", "fd00::7", 9092),
        ] {
            assert_eq!(host_and_port(text), Ok((host.to_owned(), port)));
        }
        let long = format!("{}:1", "x".repeat(256));
        for wrong in [
            "",
            "host",
            "host:",
            ":9092",
            "host:0",
            "host:99999",
            "a:b:9092",
            "[::1:9092",
            &long,
        ] {
            assert!(host_and_port(wrong).unwrap_err().contains("HOST:PORT"), "{wrong}");
        }
    }

    #[test]
    fn sizes_and_times_read_as_people_write_them() {
        assert_eq!("256MiB".parse(), Ok(Size(256 << 20)));
        assert_eq!("1000".parse(), Ok(Size(1000)));
        assert_eq!("250ms".parse(), Ok(Time(Duration::from_millis(250))));
        assert_eq!(size_from::<65_536>("64KiB"), Ok(Size(65_536)));
        assert_eq!(size_from::<65_536>("1"), Err("use 64KiB or more".to_owned()));
        assert_eq!(
            size_from::<{ 16 << 20 }>("5"),
            Err("use 16MiB or more".to_owned())
        );
        assert!("ten".parse::<Size>().unwrap_err().contains("64KiB"));
        assert!("10 lightyears".parse::<Time>().unwrap_err().contains("250ms"));
    }
}
