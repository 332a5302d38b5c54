//! Just enough of ClickHouse's SQL to route a statement: where an INSERT's data begins and in which format
//! they are, which format a query asks for, and whether there is more than one statement. It never judges a
//! statement: what it does not understand goes to the engine as it is, and the engine says what is wrong.

/// A statement, routed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Statement<'a> {
    /// An INSERT that takes data.
    Insert {
        /// The statement up to its FORMAT or VALUES, with any SETTINGS that followed the format.
        head: Vec<u8>,
        /// The format that it names; `None` when it names none.
        format: Option<&'a str>,
        /// What of the text follows: the data, or the beginning of them.
        data: &'a [u8],
    },
    /// Anything else.
    Query(Query<'a>),
}

/// What is worth knowing of a statement that is not an INSERT with data.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Query<'a> {
    /// It opens like a SELECT.
    pub(crate) reads: bool,
    /// The format that it names.
    pub(crate) format: Option<&'a str>,
    /// Its result may not be the plain concatenation of its blocks (totals, one JSON array around all rows).
    pub(crate) whole: bool,
    /// Another statement follows.
    pub(crate) several: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Word,
    Quoted,
    Other(u8),
}

#[derive(Clone, Copy)]
struct Token<'a> {
    kind: Kind,
    text: &'a [u8],
    /// Where it begins and ends in the text.
    start: usize,
    end: usize,
}

impl Token<'_> {
    fn is(&self, keyword: &str) -> bool {
        self.kind == Kind::Word && self.text.eq_ignore_ascii_case(keyword.as_bytes())
    }
}

/// The tokens of a text, lazily: what follows the last one asked for (data, often) is not looked at.
#[derive(Clone)]
struct Tokens<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Tokens<'a> {
    fn rest(&self) -> &'a [u8] {
        &self.text[self.at..]
    }

    fn skip_blanks_and_comments(&mut self) {
        loop {
            let rest = self.rest();
            let skipped = match rest {
                [b' ' | b'\t' | b'\r' | b'\n' | 0x0b | 0x0c, ..] => 1,
                [b'-', b'-', ..] | [b'#', b' ' | b'!', ..] => {
                    rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len())
                }
                [b'/', b'*', inside @ ..] => find(inside, b"*/").map_or(rest.len(), |length| length + 4),
                [0xef, 0xbb, 0xbf, ..] if self.at == 0 => 3,
                _ => return,
            };
            self.at += skipped;
        }
    }
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        self.skip_blanks_and_comments();
        let rest = self.rest();
        let first = *rest.first()?;
        let (kind, length) = match first {
            b'\'' | b'"' | b'`' => (Kind::Quoted, quoted_length(rest, first)),
            b'$' => match heredoc_length(rest) {
                Some(length) => (Kind::Quoted, length),
                None => (Kind::Other(first), 1),
            },
            _ if is_word(first) => (
                Kind::Word,
                rest.iter().position(|byte| !is_word(*byte)).unwrap_or(rest.len()),
            ),
            _ => (Kind::Other(first), 1),
        };
        let start = self.at;
        self.at += length;
        Some(Token {
            kind,
            text: &rest[..length],
            start,
            end: self.at,
        })
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}

/// The length of a quoted text with its quotes; a quote inside is doubled or behind a backslash.
fn quoted_length(text: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < text.len() {
        match text[at] {
            b'\\' => at += 2,
            byte if byte == quote && text.get(at + 1) == Some(&quote) => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    text.len()
}

/// The length of `$tag$ … $tag$`.
fn heredoc_length(text: &[u8]) -> Option<usize> {
    let tag = 2 + text[1..]
        .iter()
        .position(|byte| !is_word(*byte))
        .filter(|at| text[1 + at] == b'$')?;
    Some(tag + find(&text[tag..], &text[..tag])? + tag)
}

/// Routes a statement.
pub(crate) fn parse(text: &[u8]) -> Statement<'_> {
    let mut tokens = Tokens { text, at: 0 };
    if tokens.clone().next().is_some_and(|first| first.is("INSERT")) {
        tokens.next();
        if let Some(insert) = parse_insert(tokens.clone()) {
            return insert;
        }
    }
    Statement::Query(parse_query(Tokens { text, at: 0 }))
}

/// From after the word INSERT; `None` when its rows come from elsewhere (SELECT, a file).
fn parse_insert(mut tokens: Tokens<'_>) -> Option<Statement<'_>> {
    let text = tokens.text;
    // A table may be called `format` or `values`, so its name is stepped over before those are looked for.
    let mut token = tokens.next();
    while token.is_some_and(|token| token.is("INTO") || token.is("TABLE") || token.is("FUNCTION")) {
        token = tokens.next();
    }
    let mut depth = 0_usize;
    while let Some(token) = tokens.next() {
        match token.kind {
            Kind::Other(b'(' | b'[' | b'{') => depth += 1,
            Kind::Other(b')' | b']' | b'}') => depth = depth.saturating_sub(1),
            Kind::Other(b'.') if depth == 0 => {
                tokens.next();
            }
            _ if depth > 0 => {}
            Kind::Other(b';') => {
                return Some(Statement::Insert {
                    head: text[..token.start].to_vec(),
                    format: None,
                    data: skip_line_end(&text[token.end..]),
                });
            }
            _ if token.is("SELECT") || token.is("WITH") || token.is("FROM") || token.is("WATCH") => {
                return None;
            }
            _ if token.is("VALUES") => {
                return Some(Statement::Insert {
                    head: text[..token.start].to_vec(),
                    format: Some("Values"),
                    data: &text[token.end..],
                });
            }
            _ if token.is("FORMAT") => return insert_with_format(tokens, token),
            _ => {}
        }
    }
    Some(Statement::Insert {
        head: text.to_vec(),
        format: None,
        data: &[],
    })
}

/// From after the word FORMAT: `name [SETTINGS …] [;] data`.
fn insert_with_format<'a>(mut tokens: Tokens<'a>, keyword: Token<'a>) -> Option<Statement<'a>> {
    let text = tokens.text;
    let name = tokens.next().filter(|name| name.kind == Kind::Word)?;
    let mut head = text[..keyword.start].to_vec();
    let mut end = name.end;
    if let Some(settings_end) = settings_after(tokens.clone()) {
        head.extend_from_slice(&text[name.end..settings_end]);
        end = settings_end;
    }
    let mut data = &text[end..];
    if let Some(rest) = data.trim_ascii_start().strip_prefix(b";") {
        data = rest;
    }
    Some(Statement::Insert {
        head,
        format: Some(std::str::from_utf8(name.text).ok()?),
        data: skip_line_end(data),
    })
}

/// Where `SETTINGS name = value, …` ends, when that is what comes next.
fn settings_after(mut tokens: Tokens<'_>) -> Option<usize> {
    if !tokens.next()?.is("SETTINGS") {
        return None;
    }
    loop {
        tokens.next().filter(|name| name.kind == Kind::Word)?;
        tokens.next().filter(|equals| equals.kind == Kind::Other(b'='))?;
        let mut value = tokens.next()?;
        if matches!(value.kind, Kind::Other(b'-' | b'+')) {
            value = tokens.next()?;
        }
        // A fraction comes as word, point, word.
        let mut ahead = tokens.clone();
        if ahead
            .next()
            .is_some_and(|point| point.kind == Kind::Other(b'.') && point.start == value.end)
        {
            value = ahead.next()?;
            tokens = ahead;
        }
        let mut ahead = tokens.clone();
        if !ahead.next().is_some_and(|comma| comma.kind == Kind::Other(b',')) {
            return Some(value.end);
        }
        tokens = ahead;
    }
}

/// ClickHouse's rule: blanks after the format's name and one line end are not data.
fn skip_line_end(text: &[u8]) -> &[u8] {
    let blanks = text
        .iter()
        .position(|byte| !matches!(byte, b' ' | b'\t' | 0x0c))
        .unwrap_or(text.len());
    let text = &text[blanks..];
    let text = text.strip_prefix(b"\r").unwrap_or(text);
    text.strip_prefix(b"\n").unwrap_or(text)
}

fn parse_query(tokens: Tokens<'_>) -> Query<'_> {
    let mut query = Query::default();
    let mut depth = 0_usize;
    let mut ended = false;
    let mut previous: Option<Token> = None;
    for (position, token) in tokens.enumerate() {
        if position == 0 {
            query.reads = token.kind == Kind::Other(b'(')
                || ["SELECT", "WITH", "FROM"].iter().any(|keyword| token.is(keyword));
        }
        if ended && token.kind != Kind::Other(b';') {
            query.several = true;
            break;
        }
        match token.kind {
            Kind::Other(b'(' | b'[' | b'{') => depth += 1,
            Kind::Other(b')' | b']' | b'}') => depth = depth.saturating_sub(1),
            Kind::Other(b';') => ended = true,
            Kind::Word if depth == 0 && previous.is_some_and(|word| word.is("FORMAT")) => {
                query.format = std::str::from_utf8(token.text).ok();
            }
            _ => {}
        }
        query.whole |= ["TOTALS", "extremes", "output_format_json_array_of_rows"]
            .iter()
            .any(|word| token.is(word));
        previous = Some(token);
    }
    query
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(text: &str) -> (String, Option<String>, String) {
        match parse(text.as_bytes()) {
            Statement::Insert { head, format, data } => (
                String::from_utf8(head).unwrap().trim().to_owned(),
                format.map(str::to_owned),
                String::from_utf8(data.to_vec()).unwrap(),
            ),
            Statement::Query(query) => panic!("{text:?} taken for {query:?}"),
        }
    }

    fn query(text: &str) -> Query<'_> {
        match parse(text.as_bytes()) {
            Statement::Query(query) => query,
            insert @ Statement::Insert { .. } => panic!("{text:?} taken for {insert:?}"),
        }
    }

    #[test]
    fn the_data_of_an_insert_begin_after_the_formats_line() {
        for (text, head, format, data) in [
            (
                "INSERT INTO t FORMAT Native\n\n\nx",
                "INSERT INTO t",
                Some("Native"),
                "\n\nx",
            ),
            (
                "insert into t(a, format) format CSV 1,2",
                "insert into t(a, format)",
                Some("CSV"),
                "1,2",
            ),
            (
                "INSERT INTO t FORMAT CSV;\r\n1",
                "INSERT INTO t",
                Some("CSV"),
                "1",
            ),
            (
                "INSERT INTO t (a) VALUES (1), (';')",
                "INSERT INTO t (a)",
                Some("Values"),
                " (1), (';')",
            ),
            ("INSERT INTO t(a)", "INSERT INTO t(a)", None, ""),
            (
                "INSERT INTO values VALUES (1)",
                "INSERT INTO values",
                Some("Values"),
                " (1)",
            ),
            (
                "INSERT INTO d.format FORMAT TSV\n1",
                "INSERT INTO d.format",
                Some("TSV"),
                "1",
            ),
            (
                "INSERT INTO `a FORMAT b` FORMAT TSV\n1",
                "INSERT INTO `a FORMAT b`",
                Some("TSV"),
                "1",
            ),
            (
                "/* FORMAT X */ INSERT INTO t -- FORMAT Y\n FORMAT TSV 1",
                "/* FORMAT X */ INSERT INTO t -- FORMAT Y",
                Some("TSV"),
                "1",
            ),
            (
                "INSERT INTO TABLE FUNCTION file('x', 'CSV') FORMAT TSV\n1",
                "INSERT INTO TABLE FUNCTION file('x', 'CSV')",
                Some("TSV"),
                "1",
            ),
            (
                "INSERT INTO t SETTINGS a = 1 FORMAT TSV\n1",
                "INSERT INTO t SETTINGS a = 1",
                Some("TSV"),
                "1",
            ),
            (
                "INSERT INTO t FORMAT TSV SETTINGS a = 1, b='x', c = -0.5\n1",
                "INSERT INTO t  SETTINGS a = 1, b='x', c = -0.5",
                Some("TSV"),
                "1",
            ),
            (
                "INSERT INTO t FORMAT LineAsString settings are data",
                "INSERT INTO t",
                Some("LineAsString"),
                "settings are data",
            ),
        ] {
            let found = insert(text);
            assert_eq!(
                found,
                (head.to_owned(), format.map(str::to_owned), data.to_owned()),
                "{text:?}"
            );
        }
    }

    #[test]
    fn an_insert_from_elsewhere_is_a_query() {
        assert!(!query("INSERT INTO t SELECT 1").reads);
        assert!(!query("INSERT INTO t (a) WITH 1 AS x SELECT x").reads);
        assert!(!query("INSERT INTO t FROM INFILE 'x' FORMAT CSV").reads);
    }

    #[test]
    fn a_query_says_its_format() {
        assert_eq!(query("SELECT 1 FORMAT JSON").format, Some("JSON"));
        assert_eq!(query("SELECT 'FORMAT JSON'").format, None);
        assert_eq!(query("SELECT format(1) FROM (SELECT 1 FORMAT x)").format, None);
        assert_eq!(query("SELECT 1 FORMAT JSON SETTINGS a = 1;").format, Some("JSON"));
    }

    #[test]
    fn only_what_opens_like_a_select_reads() {
        for text in [
            "SELECT 1",
            " -- x\n select 1",
            "(SELECT 1)",
            "WITH 1 AS a SELECT a",
            "FROM t SELECT a",
        ] {
            assert!(query(text).reads, "{text}");
        }
        for text in ["", "CREATE TABLE t (a UInt8)", "SHOW TABLES", "selected"] {
            assert!(!query(text).reads, "{text}");
        }
    }

    #[test]
    fn several_statements_are_noticed_and_semicolons_in_texts_are_not() {
        assert!(query("SELECT 1; SELECT 2").several);
        for text in [
            "SELECT 1;",
            "SELECT 1;; -- x",
            "SELECT ';' || 'a'';b' || 'a\\';b'",
            "SELECT $x$ ; a $x$",
        ] {
            assert!(!query(text).several, "{text}");
        }
    }

    #[test]
    fn any_bytes_are_routed_without_a_panic() {
        for text in [
            "INSERT",
            "INSERT INTO",
            "INSERT INTO t FORMAT",
            "'",
            "`a",
            "$",
            "$a$",
            "/*",
            "\\",
            "'\\",
        ] {
            let _ = parse(text.as_bytes());
        }
        let _ = parse(b"INSERT INTO t FORMAT \xff\xfe");
        let _ = parse(&[0xff; 64]);
    }
}
