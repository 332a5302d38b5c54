//! Reads the processes' `/metrics`: sums of counters, quantiles of histograms, and differences between two readings.

use std::net::SocketAddr;

use anyhow::Context;
use millpond_cost::{MONTH_SECONDS, Prices};
use serde::Serialize;

/// One reading of a process's metrics.
pub struct Scrape(String);

impl Scrape {
    /// Reads the metrics at this admin address.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn of(admin: SocketAddr) -> anyhow::Result<Scrape> {
        let url = format!("http://{admin}/metrics");
        let answer = reqwest::get(&url)
            .await
            .with_context(|| format!("no metrics from {url}"))?;
        Ok(Scrape(answer.text().await?))
    }

    /// One reading of several processes, whose samples add up.
    ///
    /// # Errors
    /// One of them does not answer.
    pub async fn of_all(admins: impl IntoIterator<Item = SocketAddr>) -> anyhow::Result<Scrape> {
        let mut all = String::new();
        for admin in admins {
            all.push_str(&Scrape::of(admin).await?.0);
            all.push('\n');
        }
        Ok(Scrape(all))
    }

    /// Both readings, whose samples add up.
    #[must_use]
    pub fn and(mut self, other: &Scrape) -> Scrape {
        self.0.push('\n');
        self.0.push_str(&other.0);
        self
    }

    /// The samples of a metric: labels as text, and values.
    fn samples<'a>(&'a self, metric: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
        self.0.lines().filter_map(move |line| {
            let rest = line.strip_prefix(metric)?;
            let (labels, value) = match rest.strip_prefix('{') {
                Some(rest) => rest.split_once("} ")?,
                None => ("", rest.strip_prefix(' ')?),
            };
            Some((labels, value.split(' ').next()?.parse().ok()?))
        })
    }

    /// The sum of a metric's samples with `label` in their labels.
    pub fn sum(&self, metric: &str, label: &str) -> f64 {
        let samples = self.samples(metric).filter(|(labels, _)| labels.contains(label));
        samples.map(|(_, value)| value).sum()
    }

    /// A histogram summed over all its labels.
    pub fn histogram(&self, name: &str) -> Histogram {
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for (labels, count) in self.samples(&format!("{name}_bucket")) {
            let bound = labels
                .split("le=\"")
                .nth(1)
                .and_then(|rest| rest.split('"').next());
            // "+Inf" also parses as a number.
            let Some(bound) = bound.and_then(|bound| bound.parse::<f64>().ok()) else {
                continue;
            };
            match buckets.iter_mut().find(|(known, _)| *known == bound) {
                Some((_, sum)) => *sum += count,
                None => buckets.push((bound, count)),
            }
        }
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        Histogram { buckets }
    }

    /// Requests to the store by billing category.
    pub fn requests(&self) -> Requests {
        let of = |kind| self.sum("millpond_store_requests_total", &format!("kind=\"{kind}\""));
        Requests {
            put: of("put"),
            get: of("get") + of("head"),
            list: of("list"),
            delete: of("delete"),
        }
    }
}

/// A cumulative histogram: upper bounds in seconds, ascending, and counts up to them.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    buckets: Vec<(f64, f64)>,
}

impl Histogram {
    /// The observations since `before`.
    #[must_use]
    pub fn since(&self, before: &Histogram) -> Histogram {
        let count_before = |bound: f64| {
            let found = before.buckets.iter().find(|(known, _)| *known == bound);
            found.map_or(0.0, |(_, count)| *count)
        };
        let buckets = self.buckets.iter();
        Histogram {
            buckets: buckets
                .map(|&(bound, count)| (bound, count - count_before(bound)))
                .collect(),
        }
    }

    /// Number of observations.
    pub fn count(&self) -> f64 {
        self.buckets.last().map_or(0.0, |(_, count)| *count)
    }

    /// A quantile in milliseconds, interpolated within its bucket.
    pub fn quantile_ms(&self, quantile: f64) -> f64 {
        let wanted = self.count() * quantile;
        let (mut lower, mut below) = (0.0, 0.0);
        for &(bound, count) in &self.buckets {
            if count >= wanted && count > below {
                let upper = if bound.is_finite() { bound } else { lower };
                return 1_000.0 * (lower + (upper - lower) * (wanted - below) / (count - below));
            }
            (lower, below) = (bound, count);
        }
        0.0
    }
}

/// Requests to the store by billing category; S3 bills HEAD as GET, and DELETE not at all.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Requests {
    /// PUT, conditional or not.
    pub put: f64,
    /// GET and HEAD.
    pub get: f64,
    /// LIST, one per page.
    pub list: f64,
    /// DELETE.
    pub delete: f64,
}

impl Requests {
    /// Requests per second between two readings.
    #[must_use]
    pub fn per_second(self, before: Requests, seconds: f64) -> Requests {
        let rate = |now: f64, before: f64| (now - before) / seconds;
        Requests {
            put: rate(self.put, before.put),
            get: rate(self.get, before.get),
            list: rate(self.list, before.list),
            delete: rate(self.delete, before.delete),
        }
    }

    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Requests) -> Requests {
        Requests {
            put: self.put + other.put,
            get: self.get + other.get,
            list: self.list + other.list,
            delete: self.delete + other.delete,
        }
    }

    /// The monthly price of this request rate on S3 in us-east-1, without storage.
    ///
    /// # Panics
    /// Never: the built-in table has that price.
    pub fn usd_per_month(self) -> f64 {
        let prices = Prices::built_in();
        let price = prices
            .storage("s3", Some("us-east-1"))
            .expect("the built-in table has it");
        let usd = (self.put + self.list) * price.put_usd_per_1000 + self.get * price.get_usd_per_1000;
        usd / 1_000.0 * MONTH_SECONDS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EARLY: &str = "h_bucket{le=\"0.1\",stream=\"a\"} 10\nh_bucket{le=\"0.2\",stream=\"a\"} 10\nh_bucket{le=\"+Inf\",stream=\"a\"} 10\n";
    const LATE: &str = "h_bucket{le=\"0.1\",stream=\"a\"} 20\nh_bucket{le=\"0.2\",stream=\"a\"} 30\nh_bucket{le=\"+Inf\",stream=\"a\"} 30\n\
                        h_bucket{le=\"0.1\",stream=\"b\"} 0\nh_bucket{le=\"0.2\",stream=\"b\"} 20\nh_bucket{le=\"+Inf\",stream=\"b\"} 20\n";

    #[test]
    fn a_quantile_is_of_what_came_in_between_over_all_streams() {
        let histogram = |text: &str| Scrape(text.to_owned()).histogram("h");
        let between = histogram(LATE).since(&histogram(EARLY));
        assert_eq!(between.count(), 40.0);
        assert_eq!(between.quantile_ms(0.25).round(), 100.0);
        assert_eq!(between.quantile_ms(0.625).round(), 150.0);
        assert_eq!(between.quantile_ms(1.0).round(), 200.0);
        assert_eq!(histogram("").quantile_ms(0.5), 0.0);
    }

    #[test]
    fn a_month_is_priced_by_kind_from_requests_a_second() {
        let text = "millpond_store_requests_total{kind=\"put\",outcome=\"ok\"} 7\n\
                    millpond_store_requests_total{kind=\"put\",outcome=\"mismatch\"} 3\n\
                    millpond_store_requests_total{kind=\"get\",outcome=\"ok\"} 90\n\
                    millpond_store_requests_total{kind=\"head\",outcome=\"ok\"} 10\n\
                    millpond_store_requests_total{kind=\"delete\",outcome=\"ok\"} 10\n";
        let nothing = Scrape(String::new()).requests();
        let requests = Scrape(text.to_owned()).requests().per_second(nothing, 10.0);
        assert_eq!((requests.put, requests.get, requests.delete), (1.0, 10.0, 1.0));
        let usd = requests.usd_per_month();
        assert!((usd - (13.14 + 10.512)).abs() < 0.001, "{usd}");
    }
}
