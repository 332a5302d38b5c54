//! What to do about an exception that concerns the user: its password, its rights, its settings profile. Pure.

use crate::schema::identifier;

const READONLY: u32 = 164;
const UNKNOWN_USER: u32 = 192;
const WRONG_PASSWORD: u32 = 193;
const SETTING_CONSTRAINT_VIOLATION: u32 = 452;
pub(crate) const ACCESS_DENIED: u32 = 497;
const AUTHENTICATION_FAILED: u32 = 516;

/// Says what to do about an exception. `None`: it does not concern the user.
pub(crate) fn advice(code: u32, text: &str) -> Option<String> {
    let fixed = match code {
        ACCESS_DENIED => {
            return Some(match missing_grant(text) {
                Some(grant) => format!("the user lacks a right; run {grant}"),
                None => "the user lacks a right; see docs/clickhouse-users.md".to_owned(),
            });
        }
        READONLY => "the user's settings profile is read-only; give the user a profile with readonly = 0",
        UNKNOWN_USER | WRONG_PASSWORD | AUTHENTICATION_FAILED => {
            "the user or the password is wrong; set --clickhouse-user, and MILLPOND_CLICKHOUSE_PASSWORD or \
             --clickhouse-password-file"
        }
        SETTING_CONSTRAINT_VIOLATION => {
            "the user's settings profile forbids a setting that Millpond sends; remove that constraint"
        }
        _ => return None,
    };
    Some(fixed.to_owned())
}

/// Finds the right that the server names, and builds the statement that grants it. Lists of columns are left out: a consumer needs whole
/// tables.
fn missing_grant(text: &str) -> Option<String> {
    let (before, after) = text.split_once(": Not enough privileges.")?;
    let user = before.rsplit_once("DB::Exception: ")?.1;
    let (_, wanted) = after.split_once("necessary to have the grant ")?;
    let (wanted, _) = wanted.split_once(". (")?;
    let wanted = without_columns(wanted).replace(" for at least one column", "");
    let plain = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let user = match user.chars().all(plain) {
        true => user.to_owned(),
        false => identifier(user),
    };
    Some(format!("GRANT {wanted} TO {user}"))
}

/// Removes what is in parentheses.
fn without_columns(text: &str) -> String {
    let mut depth = 0_usize;
    let mut kept = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ if depth == 0 => kept.push(character),
            _ => {}
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: &str = "(ACCESS_DENIED) (version 26.7.2.1)";

    fn denied(user: &str, grant: &str) -> String {
        format!(
            "Code: 497. DB::Exception: {user}: Not enough privileges. To execute this query, it's necessary to have the \
             grant {grant}. {SERVER}"
        )
    }

    #[test]
    fn a_missing_right_is_given_as_the_statement_that_grants_it() {
        for (grant, statement) in [
            (
                "INSERT(ResourceAttributes, `Exemplars.TimeUnix`) ON otel.otel_metrics_gauge",
                "GRANT INSERT ON otel.otel_metrics_gauge TO millpond",
            ),
            (
                "SELECT for at least one column on system.replicas",
                "GRANT SELECT on system.replicas TO millpond",
            ),
            (
                "SYSTEM SYNC REPLICA ON otel.otel_logs",
                "GRANT SYSTEM SYNC REPLICA ON otel.otel_logs TO millpond",
            ),
            ("READ ON REMOTE", "GRANT READ ON REMOTE TO millpond"),
            (
                "CREATE DATABASE ON otel.*",
                "GRANT CREATE DATABASE ON otel.* TO millpond",
            ),
        ] {
            let advice = advice(ACCESS_DENIED, &denied("millpond", grant)).unwrap();
            assert_eq!(advice, format!("the user lacks a right; run {statement}"));
        }
        let advice = advice(ACCESS_DENIED, &denied("the-writer", "READ ON REMOTE")).unwrap();
        assert!(advice.ends_with("TO `the-writer`"), "{advice}");
    }

    #[test]
    fn a_text_that_names_no_right_still_gets_advice() {
        for text in [
            "",
            "Code: 497.",
            "Code: 497. DB::Exception: x: Not enough privileges. (ACCESS_DENIED)",
        ] {
            let advice = advice(ACCESS_DENIED, text).unwrap();
            assert!(advice.contains("docs/clickhouse-users.md"), "{text}: {advice}");
        }
    }

    #[test]
    fn each_mistake_gets_one_remedy() {
        for (code, remedy) in [
            (READONLY, "readonly = 0"),
            (UNKNOWN_USER, "--clickhouse-user"),
            (WRONG_PASSWORD, "MILLPOND_CLICKHOUSE_PASSWORD"),
            (AUTHENTICATION_FAILED, "--clickhouse-password-file"),
            (SETTING_CONSTRAINT_VIOLATION, "remove that constraint"),
        ] {
            assert!(advice(code, "").unwrap().contains(remedy), "{code}");
        }
        assert_eq!(advice(60, "Code: 60. DB::Exception: no table"), None);
    }
}
