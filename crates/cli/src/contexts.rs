//! Which server a command talks to, and with which token. Named servers are contexts in the user's own configuration
//! file, never in a `redrive.toml` of the current directory: a directory that somebody else wrote must not be able to
//! choose where commands and tokens go. A token never comes from the command line, where other users can read it.

use crate::args::Global;
use crate::exit_code::{CliError, ExitCode};
use redrive::ServerStore;
use redrive::core::json_input;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The maximum size of the user's configuration file and of a file with a token.
const BYTES_MAX: u64 = 64 * 1024;

/// A server to talk to.
#[derive(Debug)]
pub(crate) struct Server {
    /// The connection.
    pub store: Arc<ServerStore>,
    /// Whether changes need a reason.
    pub production: bool,
    token_file: Option<PathBuf>,
}

/// The user's configuration file.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct UserToml {
    contexts: BTreeMap<String, Context>,
}

/// A named server.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Context {
    url: String,
    token_file: Option<PathBuf>,
    ca_file: Option<PathBuf>,
    #[serde(default)]
    production: bool,
}

impl Server {
    /// The server that the flags and the environment name, if any.
    pub(crate) fn named_by(global: &Global) -> Result<Option<Self>, CliError> {
        let context = match &global.server {
            Some(url) if url.contains("://") => {
                Context { url: url.clone(), token_file: None, ca_file: None, production: false }
            }
            Some(name) => context(name)?,
            None => return Ok(None),
        };
        let token_file = global.token_file.clone().or(context.token_file);
        let token = match &token_file {
            Some(file) => Some(token_in(file)?),
            None => std::env::var("REDRIVE_TOKEN").ok().filter(|token| !token.trim().is_empty()),
        };
        let ca_file = context.ca_file.or_else(|| std::env::var_os("REDRIVE_CA").map(PathBuf::from));
        let ca_file = ca_file.filter(|file| !file.as_os_str().is_empty());
        let store = redrive::connect_trusting(&context.url, token.as_deref(), ca_file.as_deref());
        let store = store.map_err(|error| CliError::usage(error.text))?;
        Ok(Some(Self { store, production: context.production, token_file }))
    }

    /// The flags with which another process of this program reaches the same server.
    pub(crate) fn flags(&self) -> Vec<OsString> {
        let mut flags: Vec<OsString> = vec!["--server".into(), self.store.url().into()];
        if let Some(file) = &self.token_file {
            flags.extend(["--token-file".into(), file.clone().into_os_string()]);
        }
        flags
    }
}

fn token_in(file: &Path) -> Result<String, CliError> {
    let wrong =
        |error: &std::io::Error| CliError::io(format_args!("read the token in {}", file.display()), error);
    let size = std::fs::metadata(file).map_err(|error| wrong(&error))?.len();
    if size > BYTES_MAX {
        return Err(CliError::usage(format!("{} is too large for a file with a token", file.display())));
    }
    let text = std::fs::read_to_string(file).map_err(|error| wrong(&error))?;
    let token = text.trim();
    if token.is_empty() {
        return Err(CliError::usage(format!("{} is empty; it must contain a token", file.display())));
    }
    Ok(token.to_owned())
}

/// The user's configuration file according to the XDG base directory specification.
fn user_file() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || absolute("HOME").map(|home| home.join(".config"));
    absolute("XDG_CONFIG_HOME").or_else(home).map(|path| path.join("redrive/redrive.toml"))
}

/// Finds a context by name.
fn context(name: &str) -> Result<Context, CliError> {
    let Some(file) = user_file() else {
        return Err(CliError::usage(format!("{name:?} is not a URL, and there is no HOME with contexts")));
    };
    let wrong = |what: String| CliError::usage(format!("{}: {what}", file.display()));
    let unknown = |known: Vec<&String>| {
        let known: Vec<&str> = known.into_iter().map(String::as_str).collect();
        let what = if known.is_empty() {
            format!("there is no context {name:?} in {}", file.display())
        } else {
            format!("there is no context {name:?} in {}; it has {}", file.display(), known.join(", "))
        };
        CliError::new(ExitCode::NotFound, what)
            .hint("a URL begins with http:// or https://; a context has a table [contexts.NAME] in that file")
    };
    match std::fs::metadata(&file) {
        Ok(about) if about.len() > BYTES_MAX => return Err(wrong(format!("larger than {BYTES_MAX} bytes"))),
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(unknown(Vec::new())),
        Err(error) => return Err(wrong(error.to_string())),
    }
    let text = std::fs::read_to_string(&file).map_err(|error| wrong(error.to_string()))?;
    let mut user = parse(&text).map_err(wrong)?;
    let Some(mut found) = user.contexts.remove(name) else {
        return Err(unknown(user.contexts.keys().collect()));
    };
    // A relative path in the file is relative to the file.
    let folder = file.parent().unwrap_or_else(|| Path::new(""));
    for path in [&mut found.token_file, &mut found.ca_file].into_iter().flatten() {
        *path = folder.join(&*path);
    }
    Ok(found)
}

fn parse(text: &str) -> Result<UserToml, String> {
    toml::from_str(text).map_err(|error| json_input::explain(error.message()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_has_a_url_and_perhaps_a_token_file() {
        let text = "[contexts.prod]\nurl = \"https://r.example\"\ntoken_file = \"prod.token\"\nproduction = true\n\
                    [contexts.local]\nurl = \"http://localhost:7373\"";
        let user = parse(text).unwrap();
        let prod = &user.contexts["prod"];
        assert_eq!((prod.url.as_str(), prod.production), ("https://r.example", true));
        assert!(!user.contexts["local"].production);
        for (text, says) in [
            ("[contexts.a]\ntoken_file = \"x\"", "missing field `url`"),
            ("[contexts.a]\nurl = \"u\"\ntoken = \"rdt_\"", "unknown key `token`"),
            ("context = \"a\"", "unknown key `context`; did you mean `contexts`?"),
        ] {
            let error = parse(text).err().unwrap();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
