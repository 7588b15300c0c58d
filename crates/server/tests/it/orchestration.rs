//! The five routes that show dead letters as tasks of an orchestrator.

use super::Server;
use redrive_core::access::Grant;
use redrive_core::orchestration::COLUMNS;

const TASKS: &str = "/api/v1/orchestration/dlq";

#[tokio::test]
async fn a_task_is_listed_retried_resolved_and_abandoned() {
    let server = Server::start().await;
    let id =
        server.letter(r#"{"payload":{"essay":7},"kind":"grade","context":{"agent_id":"agent-9"}}"#).await;
    let other = server.letter(r#"{"payload":"plain","kind":"route"}"#).await;
    let task = server.get(&format!("{TASKS}/{id}")).await;
    let names: Vec<&String> = task.as_object().unwrap().keys().collect();
    let mut columns: Vec<&str> = COLUMNS.iter().map(|column| column.json).collect();
    columns.sort_unstable();
    assert_eq!(names, columns);
    assert_eq!((&task["taskId"], &task["taskType"]), (&task["id"], &"grade".into()));
    assert_eq!(task["payload"], serde_json::json!({"essay": 7}));
    assert_eq!(task["agentId"], "agent-9");
    assert_eq!((task["failureReason"].as_str(), task["retryCount"].as_u64()), (Some("timed out"), Some(0)));
    assert_eq!(
        task["errorDetails"],
        serde_json::json!({"ExceptionType": "HttpError", "StackTrace": "at f", "InnerException": "refused"})
    );
    let shown = server.get(&format!("{TASKS}/{other}")).await;
    assert_eq!((&shown["agentId"], &shown["payload"]), (&"w1".into(), &"plain".into()));

    let ids = async |query: &str| -> Vec<String> {
        let page = server.get(&format!("{TASKS}{query}")).await;
        page["items"].as_array().unwrap().iter().map(|task| task["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids("").await, [other.clone(), id.clone()]);
    assert_eq!(ids("?taskType=grade").await, std::slice::from_ref(&id));
    assert_eq!(ids("?limit=1").await, std::slice::from_ref(&other));
    server.post(&format!("/api/v1/dlq/{id}/review"), "{}").await;
    assert_eq!(server.get(&format!("{TASKS}/{id}")).await["status"], "pending");
    assert_eq!(ids("?taskType=grade&status=Pending").await, std::slice::from_ref(&id));

    let resolved = server.post(&format!("{TASKS}/{id}/resolve"), r#"{"notes":"graded by hand"}"#).await;
    assert_eq!(
        (resolved["status"].as_str(), resolved["manuallyResolved"].as_bool()),
        (Some("resolved"), Some(true))
    );
    assert_eq!(resolved["resolvedBy"], "bearer of [Admin]");
    assert_eq!(ids("?status=resolved").await, std::slice::from_ref(&id));
    let conflict = server.ask("POST", &format!("{TASKS}/{id}/abandon"), Some("{}")).await;
    assert_eq!((conflict.status.as_u16(), conflict.body["code"].as_str()), (409, Some("wrong_status")));

    let retried = server.post(&format!("{TASKS}/{other}/retry"), "").await;
    assert_eq!(retried["status"], "retrying");
    let leased = server.post("/api/v1/queues/q/lease", "{}").await;
    let token = leased["items"][0]["token"].as_str().unwrap();
    server.post(&format!("/api/v1/deliveries/{token}/ack"), "{}").await;
    let done = server.get(&format!("{TASKS}/{other}")).await;
    assert_eq!(
        (done["status"].as_str(), done["manuallyResolved"].as_bool()),
        (Some("resolved"), Some(false))
    );

    let third = server.letter(r#"{"payload":"x","kind":"grade"}"#).await;
    let abandoned = server.post(&format!("{TASKS}/{third}/abandon"), r#"{"reason":"obsolete"}"#).await;
    assert_eq!(abandoned["status"], "abandoned");
    let letter = server.get(&format!("/api/v1/dlq/{third}")).await;
    assert!(letter["notes"].to_string().contains("obsolete") || letter["resolution"] == "obsolete");
}

#[tokio::test]
async fn only_admins_see_tasks_and_secrets_stay_masked() {
    let server = Server::start().await;
    let id = server.letter(r#"{"payload":{"password":"hunter22"},"kind":"k"}"#).await;
    for path in [TASKS.to_owned(), format!("{TASKS}/{id}")] {
        let editor = server.token(&[Grant::Editor, Grant::Worker], &[]).await;
        assert_eq!(server.send(Server::request("GET", &path, &editor, None)).await.status.as_u16(), 403);
        assert!(!server.ask("GET", &path, None).await.text.contains("hunter22"));
    }
    for (query, code) in
        [("?status=open", "bad_query"), ("?limit=0", "invalid"), ("?tasktype=k", "bad_query")]
    {
        let reply = server.ask("GET", &format!("{TASKS}{query}"), None).await;
        assert_eq!(reply.body["code"], code, "{query}");
    }
}
