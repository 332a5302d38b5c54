//! ClickHouse's configuration: files in the data folder, rewritten at each start.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// The user that this program logs in as. Only this program knows its password.
pub(crate) const USER: &str = "embedded_clickhouse";

/// Privileges of the engine's statements: to listen, and to read the pipe that keeps it running.
const GRANTS: &str = "<grants><query>GRANT SYSTEM LISTEN ON *.*</query><query>GRANT CREATE TEMPORARY TABLE ON *.*</query>\
    <query>GRANT READ ON FILE</query></grants>";

/// The result of [`write`].
pub(crate) struct Config {
    /// The main file. ClickHouse merges `config.d` beside it.
    pub(crate) file: PathBuf,
    /// The password of [`USER`].
    pub(crate) password: String,
    /// A random name, also the macro `embedded_instance`: it distinguishes this server from any other on its port.
    pub(crate) instance: String,
}

impl Config {
    /// Writes the files into the folder `server` of the data.
    pub(crate) fn write(
        data: &Path,
        ip: IpAddr,
        http: u16,
        tcp: Option<u16>,
        users: Option<&Path>,
        config: Option<&Path>,
    ) -> Result<Config> {
        let folder = data.join("server");
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| format!("cannot replace {}", folder.display()))?;
        }
        let written = Config {
            file: folder.join("config.xml"),
            password: random()?,
            instance: random()?,
        };
        for name in ["", "config.d", "users.d"] {
            let inner = folder.join(name);
            fs::DirBuilder::new()
                .mode(0o700)
                .create(&inner)
                .with_context(|| format!("cannot create {}", inner.display()))?;
        }
        let users_file = folder.join("users.xml");
        create(
            &written.file,
            &server(ip, http, tcp, &users_file, &written.instance),
        )?;
        create(&users_file, &access(ip, users.is_some(), &written.password))?;
        for (given, name) in [(config, "config.d/given.xml"), (users, "users.d/given.xml")] {
            let Some(given) = given else { continue };
            let text =
                fs::read_to_string(given).with_context(|| format!("cannot read {}", given.display()))?;
            create(&folder.join(name), &text)?;
        }
        Ok(written)
    }
}

/// The server's settings. As a library, the engine starts without the pools that the last two settings size.
fn server(ip: IpAddr, http: u16, tcp: Option<u16>, users: &Path, instance: &str) -> String {
    let users = escape(&users.to_string_lossy());
    let tcp = tcp.map_or_else(String::new, |port| format!("<tcp_port>{port}</tcp_port>"));
    format!(
        "<clickhouse>
    <listen_host>{ip}</listen_host>
    <http_port>{http}</http_port>
    {tcp}
    <users_config>{users}</users_config>
    <macros><embedded_instance>{instance}</embedded_instance></macros>
    <background_distributed_schedule_pool_size>4</background_distributed_schedule_pool_size>
    <background_schedule_pool_size>32</background_schedule_pool_size>
</clickhouse>
"
    )
}

/// `default` without a password, and this program's own user. The engine logs in as `default` from the loopback
/// address, so that user must exist even if `others` replace it: then it has only the privileges that the engine needs.
fn access(ip: IpAddr, others: bool, password: &str) -> String {
    let local = "<ip>::1</ip><ip>127.0.0.1</ip>";
    let anywhere = "<ip>::/0</ip>";
    let (from, grants) = match others {
        true => (local, GRANTS),
        false if ip.is_loopback() => (local, ""),
        false => (anywhere, ""),
    };
    let user = |name: &str, password: &str, networks: &str, grants: &str| {
        format!(
            "<{name}><password>{password}</password><networks>{networks}</networks><profile>default</profile>\
             <quota>default</quota>{grants}</{name}>"
        )
    };
    format!(
        "<clickhouse>
    <profiles><default/></profiles>
    <quotas><default/></quotas>
    <users>
        {}
        {}
    </users>
</clickhouse>
",
        user("default", "", from, grants),
        user(USER, password, anywhere, ""),
    )
}

fn create(file: &Path, text: &str) -> Result<()> {
    let mut options = fs::OpenOptions::new();
    let created = options.write(true).create_new(true).mode(0o600).open(file);
    created
        .and_then(|mut open| open.write_all(text.as_bytes()))
        .with_context(|| format!("cannot write {}", file.display()))
}

/// 128 random bits in hexadecimal.
fn random() -> Result<String> {
    let mut bytes = [0; 16];
    fs::File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut bytes))
        .context("cannot read /dev/urandom")?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_text_in_the_configuration() {
        let written = server(
            [127, 0, 0, 1].into(),
            1,
            Some(2),
            Path::new("/a<b>&c/users.xml"),
            "x",
        );
        assert!(written.contains("<users_config>/a&lt;b&gt;&amp;c/users.xml</users_config>"));
        assert!(written.contains("<tcp_port>2</tcp_port>"));
    }

    #[test]
    fn the_password_is_for_the_owner_of_the_folder_alone() {
        use std::os::unix::fs::PermissionsExt as _;

        let data = tempfile::tempdir().unwrap();
        let given = data.path().join("given");
        fs::write(&given, "<clickhouse/>").unwrap();
        for _ in 0..2 {
            let local = [127, 0, 0, 1].into();
            let written = Config::write(data.path(), local, 1, None, Some(&given), Some(&given)).unwrap();
            let users = written.file.with_file_name("users.xml");
            assert!(fs::read_to_string(&users).unwrap().contains(&written.password));
            assert_eq!(fs::metadata(&users).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }
}
