//! Bearer tokens: parses the file that lists them and authorizes requests by their headers. No error or log contains a
//! token or quotes the file: they name lines, and tokens by name.

use std::collections::HashSet;
use std::fmt::Display;
use std::ops::Range;
use std::sync::Arc;

use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use millpond_otlp::Signal;
use millpond_segment::check_stream_name;
use sha2::{Digest as _, Sha256};
use subtle::{ConditionallySelectable, ConstantTimeEq};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::refusal::{Refusal, Why};

/// Maximum number of tokens in a file: each request's token is compared with all of them.
const TOKENS_MAX: usize = 1_000;

/// Maximum number of prefixes in a file. Each creates three streams, permanently, and a shard has room for 1,024.
const PREFIXES_MAX: usize = 300;

/// A stream's name has at most 100 characters, and `.otlp.metrics` takes 13.
const PREFIX_LEN_MAX: usize = 87;

const NAME_LEN_MAX: usize = 64;

/// A shorter token is no secret: `openssl rand -hex 32` gives 64 characters.
const TOKEN_LEN_MIN: usize = 16;

/// Far below the limit of a request's headers.
const TOKEN_LEN_MAX: usize = 4_096;

/// The word in the names of OTLP's streams.
const OTLP: &str = "otlp";

/// The top-level key with the number of tokens in a complete file.
const COUNT: &str = "count";

const KEYS: &str = "a [[token]] has name, token or sha256, and prefix if it should";

type Sha256Digest = [u8; 32];

/// The sender of a request, which determines where its records go. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Identity(Arc<Known>);

#[derive(Debug)]
struct Known {
    token: Option<String>,
    /// In the order of `Signal::ALL`.
    streams: [Arc<str>; Signal::ALL.len()],
    prefix: Option<String>,
    /// The prefixes of all tokens.
    prefixes: Arc<HashSet<String>>,
}

impl Identity {
    /// The identity of every request if tokens are off.
    pub(crate) fn anybody() -> Identity {
        Identity::new(None, None, Arc::default())
    }

    fn new(token: Option<String>, prefix: Option<String>, prefixes: Arc<HashSet<String>>) -> Identity {
        let stream = |signal: Signal| match &prefix {
            Some(prefix) => format!("{prefix}.{}", signal.stream()).into(),
            None => signal.stream().into(),
        };
        Identity(Arc::new(Known {
            token,
            streams: Signal::ALL.map(stream),
            prefix,
            prefixes,
        }))
    }

    /// The name of its token; `None` if tokens are off.
    pub(crate) fn token(&self) -> Option<&str> {
        self.0.token.as_deref()
    }

    /// The stream for its requests of this signal.
    pub(crate) fn stream(&self, signal: Signal) -> Arc<str> {
        Arc::clone(&self.0.streams[signal as usize])
    }

    /// The stream for its events of this name. No name leads to a stream of OTLP, nor to one of another token's prefix.
    pub(crate) fn event_stream(&self, name: &str) -> Result<Arc<str>, Refusal> {
        check_stream_name(name).map_err(Refusal::invalid)?;
        if is_for_otlp(name) {
            return Err(Refusal::conflict(format_args!(
                "stream {name} is for OTLP; POST to /v1/logs, /v1/traces or /v1/metrics, or choose a name without the word {OTLP}"
            )));
        }
        let Some(prefix) = &self.0.prefix else {
            let first = name.split('.').next().unwrap_or_default();
            if self.0.prefixes.contains(first) {
                return Err(Refusal::new(
                    Why::Forbidden,
                    format_args!(
                        "stream {name} belongs to the tokens with prefix {first}; choose a name that does not begin with {first}."
                    ),
                ));
            }
            return Ok(name.into());
        };
        let stream = format!("{prefix}.{name}");
        check_stream_name(&stream).map_err(Refusal::invalid)?;
        Ok(stream.into())
    }
}

/// Returns true if a stream of this name is for OTLP, so that no events go there.
pub fn is_for_otlp(stream: &str) -> bool {
    stream.split('.').any(|word| word == OTLP)
}

/// Why a request is not authorized. The client sees this text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Denied {
    #[error("no bearer token: send the header `authorization: Bearer TOKEN`")]
    Missing,
    #[error("the header `authorization` must occur once, as `Bearer TOKEN`")]
    Malformed,
    #[error("the gateway does not know this bearer token")]
    Unknown,
}

impl Denied {
    pub(crate) const ALL: [Denied; 3] = [Denied::Missing, Denied::Malformed, Denied::Unknown];

    /// The value of HTTP's `www-authenticate` header (RFC 6750, 3).
    pub(crate) fn challenge(self) -> &'static str {
        match self {
            Denied::Missing => "Bearer",
            Denied::Malformed => "Bearer error=\"invalid_request\"",
            Denied::Unknown => "Bearer error=\"invalid_token\"",
        }
    }

    /// The label in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Denied::Missing => "missing",
            Denied::Malformed => "malformed",
            Denied::Unknown => "unknown",
        }
    }
}

/// The tokens in force.
#[derive(Debug)]
pub(crate) struct Tokens {
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    digest: Sha256Digest,
    identity: Identity,
}

impl Tokens {
    /// Parses a tokens file (format: `design/security.md`).
    pub(crate) fn parse(text: &[u8]) -> Result<Tokens, String> {
        let Ok(text) = std::str::from_utf8(text) else {
            return Err("it is not UTF-8 text".to_owned());
        };
        // The parser's own message quotes the line.
        let parsed = DeTable::parse(text).map_err(|error| at(text, error.span(), error.message()))?;
        let mut entries = Vec::new();
        let mut count = None;
        for (key, value) in parsed.get_ref() {
            if key.get_ref() == COUNT {
                count = Some((number(text, value)?, value.span()));
                continue;
            }
            let tables = (key.get_ref() == "token").then(|| value.get_ref().as_array());
            let Some(tables) = tables.flatten() else {
                return Err(at(
                    text,
                    Some(key.span()),
                    "only count and [[token]] are allowed in this file",
                ));
            };
            for table in tables {
                entries.push(entry(text, table)?);
            }
        }
        if let Some((count, span)) = count.filter(|(count, _)| *count != entries.len()) {
            let found = entries.len();
            let what = format!(
                "count is {count}, and the file has {found} [[token]]: it is not complete, or count is wrong"
            );
            return Err(at(text, Some(span), what));
        }
        check(text, entries)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The names of all of them.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().filter_map(|entry| entry.identity.token())
    }

    /// Authorizes a request.
    pub(crate) fn authorize(&self, headers: &HeaderMap) -> Result<Identity, Denied> {
        self.identity(bearer(headers)?)
    }

    /// Authorizes a sender that also names its token.
    pub(crate) fn authorize_named(&self, name: &[u8], token: &[u8]) -> Result<Identity, Denied> {
        let identity = self.identity(token)?;
        match identity.token() {
            Some(found) if found.as_bytes() == name => Ok(identity),
            _ => Err(Denied::Unknown),
        }
    }

    /// The sender with this token. The comparison takes the same time for every token.
    fn identity(&self, token: &[u8]) -> Result<Identity, Denied> {
        let presented: Sha256Digest = Sha256::digest(token).into();
        let mut found = u64::MAX;
        for (place, entry) in (0_u64..).zip(&self.entries) {
            found.conditional_assign(&place, entry.digest.ct_eq(&presented));
        }
        let entry = usize::try_from(found)
            .ok()
            .and_then(|found| self.entries.get(found));
        entry.map(|entry| entry.identity.clone()).ok_or(Denied::Unknown)
    }
}

/// The token in a request's headers (RFC 6750, 2.1).
fn bearer(headers: &HeaderMap) -> Result<&[u8], Denied> {
    let mut values = headers.get_all(AUTHORIZATION).iter().map(HeaderValue::as_bytes);
    let value = values.next().ok_or(Denied::Missing)?;
    if values.next().is_some() {
        return Err(Denied::Malformed);
    }
    let space = value
        .iter()
        .position(|byte| *byte == b' ')
        .ok_or(Denied::Malformed)?;
    let (scheme, token) = (&value[..space], value[space..].trim_ascii());
    if !scheme.eq_ignore_ascii_case(b"bearer") || token.is_empty() {
        return Err(Denied::Malformed);
    }
    Ok(token)
}

fn number(text: &str, value: &Spanned<DeValue<'_>>) -> Result<usize, String> {
    let digits = value
        .get_ref()
        .as_integer()
        .filter(|integer| integer.radix() == 10);
    digits
        .and_then(|integer| integer.as_str().parse().ok())
        .ok_or_else(|| {
            at(
                text,
                Some(value.span()),
                "count must be the number of [[token]] in this file",
            )
        })
}

/// An entry and its position in the text.
struct Found {
    digest: Sha256Digest,
    name: String,
    prefix: Option<String>,
    span: Range<usize>,
}

fn entry(text: &str, table: &Spanned<DeValue<'_>>) -> Result<Found, String> {
    let span = table.span();
    let fail = |what: &str| Err(at(text, Some(span.clone()), what));
    let Some(fields) = table.get_ref().as_table() else {
        return fail(KEYS);
    };
    let (mut name, mut digest, mut prefix) = (None, None, None);
    for (key, value) in fields {
        let fail = |what: &str| Err(at(text, Some(value.span()), what));
        let Some(value) = value.get_ref().as_str() else {
            return fail(&format!("a value that is not a string; {KEYS}"));
        };
        match &key.get_ref()[..] {
            "name" if !(1..=NAME_LEN_MAX).contains(&value.len()) || !value.bytes().all(in_a_name) => {
                return fail("name must be 1 to 64 of the characters a-z A-Z 0-9 . _ -");
            }
            "name" => name = Some(value.to_owned()),
            "prefix" if !is_prefix(value) => {
                return fail(
                    "prefix must be 1 to 87 of the characters a-z A-Z 0-9 _ - with a letter or digit first, and not `otlp`",
                );
            }
            "prefix" => prefix = Some(value.to_owned()),
            "token" | "sha256" if digest.is_some() => return fail("both token and sha256: give one of them"),
            "token" => match of_token(value) {
                Ok(of_token) => digest = Some(of_token),
                Err(why) => return fail(why),
            },
            "sha256" => match of_hex(value) {
                Some(of_hex) => digest = Some(of_hex),
                None => {
                    return fail(
                        "sha256 must be 64 hexadecimal digits, as `printf %s \"$TOKEN\" | sha256sum | cut -d ' ' -f 1` prints them",
                    );
                }
            },
            _ => return fail(&format!("an unknown key; {KEYS}")),
        }
    }
    match (name, digest) {
        (Some(name), Some(digest)) => Ok(Found {
            digest,
            name,
            prefix,
            span,
        }),
        (None, _) => fail("a [[token]] without a name"),
        (_, None) => fail("a [[token]] without token or sha256"),
    }
}

/// Checks the rules between entries.
fn check(text: &str, found: Vec<Found>) -> Result<Tokens, String> {
    if found.is_empty() {
        return Err("it has no [[token]], so nobody could send".to_owned());
    }
    if found.len() > TOKENS_MAX {
        return Err(format!(
            "it has {} tokens, more than the maximum of {TOKENS_MAX}",
            found.len()
        ));
    }
    let prefixes: HashSet<String> = found.iter().filter_map(|found| found.prefix.clone()).collect();
    if prefixes.len() > PREFIXES_MAX {
        return Err(format!(
            "it has {} different prefixes, more than the maximum of {PREFIXES_MAX}",
            prefixes.len()
        ));
    }
    let prefixes = Arc::new(prefixes);
    let (mut names, mut digests) = (HashSet::new(), HashSet::new());
    let mut entries = Vec::with_capacity(found.len());
    for Found {
        digest,
        name,
        prefix,
        span,
    } in found
    {
        if !digests.insert(digest) {
            return Err(at(text, Some(span), "the same token as an earlier one"));
        }
        if !names.insert(name.clone()) {
            return Err(at(text, Some(span), "the same name as an earlier one"));
        }
        let identity = Identity::new(Some(name), prefix, Arc::clone(&prefixes));
        entries.push(Entry { digest, identity });
    }
    Ok(Tokens { entries })
}

fn in_a_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._-".contains(&byte)
}

/// No dot: then `acme.*` belongs to `acme` alone. Not `otlp`: `otlp.*` are the streams without a prefix.
fn is_prefix(text: &str) -> bool {
    (1..=PREFIX_LEN_MAX).contains(&text.len())
        && text.bytes().all(|byte| in_a_name(byte) && byte != b'.')
        && text.as_bytes()[0].is_ascii_alphanumeric()
        && text != OTLP
}

fn of_token(token: &str) -> Result<Sha256Digest, &'static str> {
    if !(TOKEN_LEN_MIN..=TOKEN_LEN_MAX).contains(&token.len()) {
        return Err("token must have 16 to 4096 characters; `openssl rand -hex 32` makes one");
    }
    // RFC 6750, 2.1, b64token.
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
    if !token.bytes().all(allowed) {
        return Err("token may contain only the characters a-z A-Z 0-9 - . _ ~ + / =");
    }
    Ok(Sha256::digest(token).into())
}

fn of_hex(text: &str) -> Option<Sha256Digest> {
    let mut digest = Sha256Digest::default();
    if text.len() != 2 * digest.len() || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (place, byte) in digest.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * place..2 * place + 2], 16).ok()?;
    }
    Some(digest)
}

fn at(text: &str, span: Option<Range<usize>>, what: impl Display) -> String {
    let before = span.map_or(0, |span| span.start.min(text.len()));
    let line = 1 + text.as_bytes()[..before]
        .iter()
        .filter(|byte| **byte == b'\n')
        .count();
    format!("line {line}: {what}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "c2VjcmV0LXNlY3JldC1zZWNyZXQ=";

    fn headers(values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, value.parse().unwrap());
        }
        headers
    }

    fn hex(digest: Sha256Digest) -> String {
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn tokens() -> Tokens {
        let other = hex(Sha256::digest("another-token-of-somebody").into());
        let text = format!(
            "# Who may send.\n[[token]]\nname = \"agents\"\ntoken = \"{SECRET}\"\n\n\
             [[token]]\nname = \"acme\"\nsha256 = \"{other}\"\nprefix = \"acme-1\"\n"
        );
        Tokens::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_token_is_known_by_itself_or_by_its_digest_and_says_where_records_go() {
        let tokens = tokens();
        assert_eq!(tokens.names().collect::<Vec<_>>(), ["agents", "acme"]);
        let agents = tokens
            .authorize(&headers(&[&format!("Bearer {SECRET}")]))
            .unwrap();
        assert_eq!(
            (agents.token(), &*agents.stream(Signal::Logs)),
            (Some("agents"), "otlp.logs")
        );
        let acme = tokens
            .authorize(&headers(&["Bearer another-token-of-somebody"]))
            .unwrap();
        let streams = Signal::ALL.map(|signal| acme.stream(signal));
        assert_eq!(
            streams.map(|stream| stream.to_string()),
            ["acme-1.otlp.logs", "acme-1.otlp.traces", "acme-1.otlp.metrics"]
        );
    }

    #[test]
    fn the_scheme_is_in_any_case_and_the_token_in_its_own() {
        let tokens = tokens();
        for scheme in ["bearer", "BEARER", "bEaReR", "Bearer  "] {
            let identity = tokens.authorize(&headers(&[&format!("{scheme} {SECRET}")]));
            assert_eq!(identity.unwrap().token(), Some("agents"), "{scheme}");
        }
        let denied = |values: &[&str]| tokens.authorize(&headers(values)).unwrap_err();
        assert_eq!(denied(&[]), Denied::Missing);
        let right = format!("Bearer {SECRET}");
        for malformed in [
            &[&right[..], &right][..],
            &[SECRET],
            &["Bearer"],
            &["Bearer "],
            &[""],
            &[&format!("Basic {SECRET}")],
            &[&format!("Bearer{SECRET}")],
        ] {
            assert_eq!(denied(malformed), Denied::Malformed, "{malformed:?}");
        }
        for unknown in [
            &right.to_uppercase(),
            &right[..right.len() - 1],
            &format!("{right}="),
            &format!("{right}, {right}"),
            // A digest is not a valid token.
            &format!("Bearer {}", hex(Sha256::digest(SECRET).into())),
        ] {
            assert_eq!(denied(&[unknown]), Denied::Unknown, "{unknown}");
        }
    }

    #[test]
    fn a_mistake_names_its_line_and_never_what_is_in_it() {
        let good = format!("[[token]]\nname = \"agents\"\ntoken = \"{SECRET}\"\n");
        for (rest, expected) in [
            ("[[token]\n", "line 4: "),
            (&format!("token: {SECRET}\n"), "line 4: "),
            (&format!("{SECRET}\n"), "line 4: "),
            (
                &format!("[[token]]\nname = \"a\"\ntoken = \"{SECRET}\n"),
                "line 6: ",
            ),
            (
                &format!("[[token]]\nname = \"a\"\ntoken = {SECRET}\n"),
                "line 6: ",
            ),
            (
                &format!("[[tokens]]\nname = \"{SECRET}\"\n"),
                "line 4: only count and [[token]] are allowed",
            ),
            (&format!("[token]\nname = \"{SECRET}\"\n"), "line 4: "),
            (
                &format!("[[token]]\n\"{SECRET}\" = \"a\"\n"),
                "line 5: an unknown key",
            ),
            (
                &format!("[[token]]\nname = [\"{SECRET}\"]\n"),
                "line 5: a value that is not a string",
            ),
            (
                &format!("[[token]]\nname = \"a\"\n\ntoken = \"{SECRET} \"\n"),
                "line 7: token may contain only",
            ),
            (
                &format!("[[token]]\ntoken = \"{SECRET}-\"\n"),
                "line 4: a [[token]] without a name",
            ),
            (
                "[[token]]\nname = \"a\"\n",
                "line 4: a [[token]] without token or sha256",
            ),
            ("[[token]]\nname = \"a b\"\n", "line 5: name must be"),
            (
                "[[token]]\nname = \"a\"\ntoken = \"short-secret\"\n",
                "line 6: token must have 16",
            ),
            (
                &format!("[[token]]\nname = \"a\"\nsha256 = \"{SECRET}\"\n"),
                "line 6: sha256 must be",
            ),
            (
                &format!(
                    "[[token]]\nname = \"a\"\nsha256 = \"{:064}\"\ntoken = \"{SECRET}-\"\n",
                    0
                ),
                "line 7: both token and sha256",
            ),
            (
                &format!("[[token]]\nname = \"b\"\ntoken = \"{SECRET}\"\n"),
                "line 4: the same token",
            ),
            (
                &format!("[[token]]\nname = \"agents\"\ntoken = \"{SECRET}-\"\n"),
                "line 4: the same name",
            ),
            ("[[token]]\nprefix = \"a.b\"\n", "line 5: prefix must be"),
            ("[[token]]\nprefix = \"otlp\"\n", "line 5: prefix must be"),
            ("[[token]]\nprefix = \"-a\"\n", "line 5: prefix must be"),
        ] {
            let mistake = Tokens::parse(format!("{good}{rest}").as_bytes()).unwrap_err();
            assert!(mistake.contains(expected), "{rest}: {mistake}");
            assert!(
                !mistake.contains("c2Vj") && !mistake.contains("short-secret"),
                "{mistake}"
            );
        }
        assert!(Tokens::parse(b"").unwrap_err().contains("no [[token]]"));
        assert!(Tokens::parse(b"\xff").unwrap_err().contains("UTF-8"));
    }

    #[test]
    fn half_of_a_file_that_says_its_count_is_refused_wherever_it_ends() {
        let mut whole = "count = 3\n".to_owned();
        for name in ["a", "b", "c"] {
            whole += &format!("[[token]]\nname = \"{name}\"\ntoken = \"{name}-{SECRET}\"\n");
        }
        let last = whole.trim_end().len();
        for end in 0..last {
            Tokens::parse(&whole.as_bytes()[..end]).unwrap_err();
        }
        assert_eq!(Tokens::parse(whole.as_bytes()).unwrap().len(), 3);
        for (count, expected) in [
            ("2", "count is 2, and the file has 3"),
            ("-3", "count must be"),
            ("\"3\"", "count must be"),
        ] {
            let mistake = Tokens::parse(whole.replace("count = 3", &format!("count = {count}")).as_bytes());
            let mistake = mistake.unwrap_err();
            assert!(
                mistake.starts_with("line 1: ") && mistake.contains(expected),
                "{mistake}"
            );
        }
    }

    #[test]
    fn a_file_has_its_limits() {
        let file = |tokens: usize, prefixes: usize| {
            let entry = |n: usize| {
                let prefix = (n < prefixes).then(|| format!("prefix = \"p{n}\"\n"));
                format!(
                    "[[token]]\nname = \"n{n}\"\ntoken = \"{n:016}\"\n{}",
                    prefix.unwrap_or_default()
                )
            };
            Tokens::parse((0..tokens).map(entry).collect::<String>().as_bytes())
        };
        assert_eq!(file(TOKENS_MAX, PREFIXES_MAX).unwrap().len(), TOKENS_MAX);
        assert!(file(TOKENS_MAX + 1, 0).unwrap_err().contains("1001 tokens"));
        assert!(
            file(500, PREFIXES_MAX + 1)
                .unwrap_err()
                .contains("301 different prefixes")
        );
    }
}
