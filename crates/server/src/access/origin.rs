//! Checks before routing that keep other web pages out: the Host must be one of ours (against DNS rebinding), and a
//! browser must not send a request on behalf of another site (against forged requests). No reply ever carries CORS
//! headers.

use crate::config::Config;
use crate::problem::Problem;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, Uri, header};

/// Names that always mean this machine.
const LOCAL: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// Checks where a request says it is going and where it comes from.
pub(crate) fn check_origin(
    config: &Config,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<(), Problem> {
    let host = host(uri, headers)?;
    if !is_known(config, host.host()) {
        let what = "the Host of the request is not one of this server; name it with --host to allow it";
        return Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, "wrong_host", what));
    }
    let cross = || {
        let what = "the request comes from another site";
        Problem::new(StatusCode::FORBIDDEN, "cross_site", what)
    };
    let safe = matches!(*method, Method::GET | Method::HEAD);
    let site = single(headers, &HeaderName::from_static("sec-fetch-site"))?;
    match site {
        // A link on another page may lead here, but it may not change anything.
        Some("same-origin" | "none") | None => {}
        Some(_)
            if safe && single(headers, &HeaderName::from_static("sec-fetch-mode"))? == Some("navigate") => {}
        Some(_) => return Err(cross()),
    }
    if let Some(origin) = single(headers, &header::ORIGIN)? {
        let authority = origin.split_once("://").and_then(|(_, rest)| rest.parse::<Authority>().ok());
        let same = authority.is_some_and(|authority| authority.as_str().eq_ignore_ascii_case(host.as_str()));
        if !same {
            return Err(cross());
        }
    }
    Ok(())
}

/// The host that the request names: in its target, else in its only Host header.
fn host(uri: &Uri, headers: &HeaderMap) -> Result<Authority, Problem> {
    let wrong =
        || Problem::new(StatusCode::MISDIRECTED_REQUEST, "wrong_host", "the request names no valid host");
    let header = single(headers, &header::HOST)?;
    let text = match (uri.authority(), header) {
        (Some(authority), Some(header)) if !authority.as_str().eq_ignore_ascii_case(header) => {
            return Err(wrong());
        }
        (Some(authority), _) => authority.as_str(),
        (None, Some(header)) => header,
        (None, None) => return Err(wrong()),
    };
    let authority: Authority = text.parse().map_err(|_| wrong())?;
    if authority.as_str().contains('@') {
        return Err(wrong());
    }
    Ok(authority)
}

/// Whether a host, perhaps with a port, names this machine.
pub(crate) fn is_local(host: &str) -> bool {
    let name = host.parse::<Authority>().map(|authority| authority.host().to_owned()).unwrap_or_default();
    LOCAL.iter().any(|local| local.eq_ignore_ascii_case(&name))
}

fn is_known(config: &Config, host: &str) -> bool {
    let named = config.hosts.iter().map(String::as_str);
    LOCAL.into_iter().chain(named).any(|known| known.eq_ignore_ascii_case(host))
}

/// The value of a header that may occur once.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Problem> {
    let mut values = headers.get_all(name).iter();
    let (first, second) = (values.next(), values.next());
    let wrong =
        || Problem::bad_request("bad_header", format!("the header {name} must occur once and be text"));
    match (first, second) {
        (None, _) => Ok(None),
        (Some(value), None) => value.to_str().map(Some).map_err(|_| wrong()),
        (Some(_), Some(_)) => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(method: &Method, pairs: &[(&'static str, &'static str)]) -> Result<(), &'static str> {
        let config = Config { hosts: vec!["redrive.example".into()], ..Config::default() };
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        check_origin(&config, method, &Uri::from_static("/api/v1/queues"), &headers).map_err(|p| p.code())
    }

    #[test]
    fn only_known_hosts_are_served() {
        for host in
            ["localhost", "localhost:7373", "127.0.0.1:1", "[::1]:7373", "LOCALHOST", "redrive.example"]
        {
            assert_eq!(check(&Method::GET, &[("host", host)]), Ok(()), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "localhost.",
            "127.0.0.2",
            "127.1",
            "2130706433",
            "0x7f.1",
            "0.0.0.0",
            "[::]",
            "[::ffff:127.0.0.1]",
            "user@localhost",
            "localhost@evil.example",
            "localhost:7373:80",
            "",
            "loc%61lhost",
        ] {
            assert_eq!(check(&Method::GET, &[("host", host)]), Err("wrong_host"), "{host}");
        }
        assert_eq!(check(&Method::GET, &[]), Err("wrong_host"));
        assert_eq!(
            check(&Method::GET, &[("host", "localhost"), ("host", "evil.example")]),
            Err("bad_header")
        );
    }

    #[test]
    fn other_sites_change_nothing() {
        let with = |method, pairs: &[(&'static str, &'static str)]| {
            let mut all = vec![("host", "localhost:7373")];
            all.extend(pairs);
            check(&method, &all)
        };
        for site in ["same-origin", "none"] {
            assert_eq!(with(Method::POST, &[("sec-fetch-site", site)]), Ok(()));
        }
        for site in ["cross-site", "same-site", "", "nonsense"] {
            assert_eq!(with(Method::POST, &[("sec-fetch-site", site)]), Err("cross_site"), "{site}");
            assert_eq!(with(Method::GET, &[("sec-fetch-site", site)]), Err("cross_site"), "{site}");
        }
        let navigation = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")];
        assert_eq!(with(Method::GET, &navigation), Ok(()));
        assert_eq!(with(Method::POST, &navigation), Err("cross_site"));
        assert_eq!(with(Method::POST, &[("origin", "http://localhost:7373")]), Ok(()));
        for origin in
            ["http://evil.example", "null", "http://localhost:1", "http://localhost:7373.evil.example"]
        {
            assert_eq!(with(Method::POST, &[("origin", origin)]), Err("cross_site"), "{origin}");
        }
    }
}
