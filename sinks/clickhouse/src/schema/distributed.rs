//! Parses the engine of a Distributed table. Pure.

/// The arguments of `ENGINE = Distributed(…)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Distributed {
    pub(crate) cluster: String,
    pub(crate) database: String,
    pub(crate) table: String,
    /// The expression that selects a row's shard; empty if the table has no key.
    pub(crate) sharding_key: String,
}

impl Distributed {
    /// Parses `engine_full`. Returns `None` for another engine, or if a name is an expression or empty.
    pub(crate) fn parse(engine_full: &str) -> Option<Self> {
        let arguments = arguments(engine_full.strip_prefix("Distributed(")?)?;
        let mut names = arguments.iter().take(3).map(|text| name(text));
        let (cluster, database, table) = (names.next()??, names.next()??, names.next()??);
        Some(Distributed {
            cluster,
            database,
            table,
            sharding_key: arguments.get(3).cloned().unwrap_or_default(),
        })
    }
}

/// Splits the arguments up to the closing bracket.
fn arguments(text: &str) -> Option<Vec<String>> {
    let mut arguments = vec![String::new()];
    let (mut depth, mut quote) = (0, None);
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        let last = arguments.last_mut()?;
        match (quote, character) {
            (Some(open), _) => {
                last.push(character);
                if character == '\\' {
                    last.extend(characters.next());
                } else if character == open {
                    quote = None;
                }
                continue;
            }
            (None, '\'' | '`' | '"') => quote = Some(character),
            (None, '(' | '[') => depth += 1,
            (None, ')') if depth == 0 => {
                let trimmed = arguments.iter().map(|argument| argument.trim().to_owned());
                return Some(trimmed.collect());
            }
            (None, ')' | ']') => depth -= 1,
            (None, ',') if depth == 0 => {
                arguments.push(String::new());
                continue;
            }
            _ => {}
        }
        arguments.last_mut()?.push(character);
    }
    None
}

/// Reads a name, with or without quotes.
fn name(text: &str) -> Option<String> {
    let quoted = ['\'', '`', '"'].into_iter().find_map(|quote| {
        let inner = text.strip_prefix(quote)?.strip_suffix(quote)?;
        let mut name = String::new();
        let mut characters = inner.chars();
        while let Some(character) = characters.next() {
            name.push(if character == '\\' {
                characters.next()?
            } else {
                character
            });
        }
        Some(name)
    });
    let plain = |text: &str| {
        text.chars()
            .all(|character| character.is_alphanumeric() || character == '_')
            .then(|| text.to_owned())
    };
    quoted.or_else(|| plain(text)).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distributed_table_names_what_is_behind_it() {
        let of = |engine_full: &str| {
            let found = Distributed::parse(engine_full)?;
            Some((found.cluster, found.database, found.table, found.sharding_key))
        };
        let found = |cluster: &str, key: &str| {
            Some((cluster.to_owned(), "d".to_owned(), "t".to_owned(), key.to_owned()))
        };
        assert_eq!(of("Distributed('c', 'd', 't')"), found("c", ""));
        assert_eq!(
            of("Distributed('{cluster}', d, `t`, cityHash64(TraceId, ')', [1, 2])) SETTINGS x = 1"),
            found("{cluster}", "cityHash64(TraceId, ')', [1, 2])")
        );
        assert_eq!(
            of("Distributed('it\\'s', 'd', 't', rand(), 'policy')"),
            found("it's", "rand()")
        );
        assert_eq!(of("Distributed('c', '', 't')"), None);
        assert_eq!(of("Distributed('c', currentDatabase(), 't')"), None);
        assert_eq!(of("MergeTree ORDER BY (a)"), None);
    }
}
