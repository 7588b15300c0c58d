//! The document and the router are the same list of routes.

use super::Server;
use super::access::concrete;
use redrive_server::{Route, openapi_document, routes};
use std::collections::BTreeSet;

const METHODS: [&str; 5] = ["GET", "POST", "PUT", "PATCH", "DELETE"];

#[tokio::test]
async fn the_router_answers_exactly_what_the_document_lists() {
    let server = Server::start().await;
    let paths = openapi_document()["paths"].as_object().unwrap();
    let listed: BTreeSet<(String, String)> = paths
        .iter()
        .flat_map(|(path, item)| {
            item.as_object().unwrap().keys().map(|method| (method.to_uppercase(), path.clone()))
        })
        .collect();
    let table: BTreeSet<(String, String)> =
        routes().into_iter().map(|Route { method, path, .. }| (method.into(), path.into())).collect();
    assert_eq!(listed, table);
    assert!(listed.len() > 75, "{}", listed.len());
    for path in paths.keys() {
        let mut allow = BTreeSet::new();
        for method in METHODS {
            let reply = server.send(Server::request(method, &concrete(path), "", None)).await;
            let answers = reply.body["code"] != "no_such_route" && reply.body["code"] != "wrong_method";
            assert_eq!(answers, listed.contains(&(method.into(), path.clone())), "{method} {path}");
            if answers {
                allow.insert(method.to_owned());
            }
        }
        let options = server.send(Server::request("OPTIONS", &concrete(path), "", None)).await;
        assert_eq!(options.status.as_u16(), 204, "{path}");
        let said: BTreeSet<String> =
            options.headers["allow"].to_str().unwrap().split(',').map(|m| m.trim().to_owned()).collect();
        if allow.contains("GET") {
            allow.insert("HEAD".into());
        }
        assert_eq!(said, allow, "{path}");
    }
}

#[tokio::test]
async fn the_document_and_the_page_need_no_token_and_load_nothing_from_elsewhere() {
    let server = Server::start().await;
    let ask = async |path: &str| server.send(Server::request("GET", path, "", None)).await;
    let document = ask("/openapi.json").await;
    assert_eq!(document.body["openapi"], "3.1.0");
    let page = ask("/docs").await;
    assert!(page.headers["content-type"].to_str().unwrap().starts_with("text/html"));
    for (path, item) in document.body["paths"].as_object().unwrap() {
        for operation in item.as_object().unwrap().values() {
            let anchor = format!("id=\"{}\"", operation["operationId"].as_str().unwrap());
            assert!(page.text.contains(&anchor), "{path}");
        }
    }
    for bad in ["<script", " style=", "http-equiv", "src=", "@import"] {
        assert!(!page.text.contains(bad), "{bad}");
    }
    let style = ask("/docs/style.css").await;
    assert!(!style.text.contains("url(") && !style.text.contains("@import"));
}
