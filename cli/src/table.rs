//! The settings that say which of ClickHouse's tables rows are in, the same for every command.

use millpond_clickhouse::Columns;

/// Which table, and who asks.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct TableArgs {
    /// The database that rows go to; it is made when missing.
    #[arg(long, env = "MILLPOND_DATABASE", value_name = "NAME", default_value = "otel")]
    pub(crate) database: String,

    /// The table for logs; it is made when missing, as the Collector's clickhouseexporter makes it.
    #[arg(
        long,
        env = "MILLPOND_LOGS_TABLE",
        value_name = "NAME",
        default_value = "otel_logs"
    )]
    pub(crate) logs_table: String,

    /// ClickHouse's user. Without it the server's default user.
    #[arg(long, env = "MILLPOND_CLICKHOUSE_USER", value_name = "NAME")]
    pub(crate) clickhouse_user: Option<String>,

    /// The user's password. Give it as the variable: flags can be seen by other users of the machine.
    #[arg(
        long,
        env = "MILLPOND_CLICKHOUSE_PASSWORD",
        value_name = "PASSWORD",
        hide_env_values = true
    )]
    pub(crate) clickhouse_password: Option<String>,

    /// Millpond's own columns in the table: `all`, or `none` for the exporter's schema as it is, which gives up
    /// asking the table which chunks it has.
    #[arg(long, env = "MILLPOND_COLUMNS", value_name = "all|none", default_value = "all", value_parser = columns)]
    pub(crate) columns: Columns,
}

impl TableArgs {
    /// The sink's settings for this table of the server at `url`.
    pub(crate) fn at(&self, url: &str) -> millpond_clickhouse::Config {
        millpond_clickhouse::Config {
            url: url.to_owned(),
            user: self.clickhouse_user.clone(),
            password: self.clickhouse_password.clone(),
            database: self.database.clone(),
            table: self.logs_table.clone(),
            columns: self.columns,
            ..millpond_clickhouse::Config::default()
        }
    }
}

fn columns(text: &str) -> Result<Columns, String> {
    match text {
        "all" => Ok(Columns::All),
        "none" => Ok(Columns::None),
        _ => Err("use all or none".into()),
    }
}
