//! The dashboard: pages made on the server, for people with a browser. Everything works by links and forms; a script
//! only keeps the same pages up to date. A handler here asks the store through the gate of its visitor, hands the
//! replies to a function that turns them into a view, and renders the view with a template. Views decide nothing that
//! the core decides, and templates escape everything they are given.

mod act;
mod alerts;
mod assets;
mod audit;
mod breakers;
mod chart;
mod diagnosis;
mod edit;
mod fields;
mod frame;
mod group;
mod groups;
mod letter;
mod letters;
mod login;
mod operations;
mod overview;
mod payload;
mod queues;
mod settings;
mod stack;
mod tables;
mod text;
mod timeline;
mod visitor;
mod workers;

pub use login::LoginCodes;

use crate::app::App;
use crate::problem::Problem;
use askama::Template;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{Html, IntoResponse as _, Response};
use axum::routing::{MethodRouter, get, post};
use frame::Frame;
use std::sync::{Arc, LazyLock};
use visitor::{Failure, Theme, Visitor, see_other, with_cookie};

/// Where the script gets its events from, if this server has them.
static EVENTS: LazyLock<Option<&str>> = LazyLock::new(|| {
    let mut paths = crate::api::endpoints().into_iter().map(|endpoint| endpoint.path);
    paths.find(|path| *path == "/api/v1/events")
});

/// A route: its path, its methods, and what answers.
type Route = (&'static str, &'static [&'static str], MethodRouter<Arc<App>>);

/// Every page and every form.
pub(crate) fn table() -> Vec<Route> {
    vec![
        ("/", &["GET"], get(overview::show)),
        ("/groups", &["GET"], get(groups::list)),
        ("/groups/{id}", &["GET", "POST"], get(group::show).post(group::act)),
        ("/dlq", &["GET"], get(letters::list)),
        ("/dlq/{id}", &["GET", "POST"], get(letter::show).post(act::on_one)),
        ("/dlq/{id}/reveal", &["POST"], post(letter::reveal)),
        ("/dlq/{id}/edit", &["GET", "POST"], get(edit::show).post(edit::step)),
        ("/dlq/{id}/diff", &["GET"], get(edit::diff)),
        ("/act", &["GET", "POST"], get(act::preview).post(act::start)),
        ("/operations", &["GET"], get(operations::list)),
        ("/operations/{id}", &["GET", "POST"], get(operations::show).post(operations::control)),
        ("/queues", &["GET"], get(queues::list)),
        ("/queues/{queue}", &["GET", "POST"], get(queues::show).post(queues::act)),
        ("/breakers", &["GET", "POST"], get(breakers::list).post(breakers::force)),
        ("/workers", &["GET"], get(workers::list)),
        ("/audit", &["GET"], get(audit::list)),
        ("/find", &["GET"], get(audit::find)),
        ("/alerts", &["GET", "POST"], get(alerts::list).post(alerts::act)),
        ("/settings", &["GET", "POST"], get(settings::show).post(settings::act)),
        ("/login", &["GET", "POST"], get(login::show).post(login::enter)),
        ("/logout", &["POST"], post(login::leave)),
        ("/theme", &["POST"], post(login::choose_theme)),
    ]
}

/// The routes of the dashboard.
pub(crate) fn routes(app: &Arc<App>) -> Router<Arc<App>> {
    let pages =
        table().into_iter().fold(Router::new(), |router, (path, _, methods)| router.route(path, methods));
    pages.layer(middleware::from_fn_with_state(Arc::clone(app), shell)).merge(assets::routes())
}

/// A page that says why there is no other.
#[derive(Template)]
#[template(path = "problem.html")]
struct ProblemPage {
    frame: Frame,
    status: u16,
    heading: &'static str,
    detail: String,
    code: &'static str,
}

/// Turns a failure into a page, or into the way to the login page.
async fn shell(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let theme = Theme::of(request.headers());
    let is_get = request.method() == Method::GET;
    let here =
        request.uri().path_and_query().map_or_else(|| "/groups".to_owned(), |here| here.as_str().to_owned());
    let is_from_elsewhere = request
        .headers()
        .get("sec-fetch-site")
        .is_some_and(|site| site == "cross-site" || site == "same-site");
    let response = next.run(request).await;
    let Some(Failure(problem)) = response.extensions().get::<Failure>().cloned() else { return response };
    if problem.status() == StatusCode::UNAUTHORIZED {
        return match (is_get, is_from_elsewhere) {
            (true, true) => login::again(&app, theme, &here),
            (true, false) => see_other(&format!("/login?next={}", text::query(&here))),
            (false, _) => see_other("/login"),
        };
    }
    problem_page(&app, theme, &here, &problem)
}

fn problem_page(app: &App, theme: Theme, here: &str, problem: &Problem) -> Response {
    let heading = match problem.status() {
        StatusCode::NOT_FOUND => "There is nothing here",
        StatusCode::FORBIDDEN => "Your token does not allow this",
        StatusCode::CONFLICT | StatusCode::PRECONDITION_FAILED => "Something changed meanwhile",
        StatusCode::TOO_MANY_REQUESTS => "Slow down for a moment",
        status if status.is_client_error() => "This cannot be done as it was asked",
        _ => "The store cannot answer at the moment",
    };
    let page = ProblemPage {
        frame: Frame::bare(&app.config, theme, here, heading),
        status: problem.status().as_u16(),
        heading,
        detail: problem.detail().to_owned(),
        code: problem.code(),
    };
    let body = page.render().unwrap_or_else(|_| heading.to_owned());
    (problem.status(), Html(body)).into_response()
}

/// Renders a page for its visitor.
fn render(visitor: &Visitor, page: &impl Template) -> Result<Response, Failure> {
    let cannot = |error: askama::Error| {
        Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "page_failed",
            format!("the page could not be made: {error}"),
        )
    };
    let mut response = Html(page.render().map_err(cannot)?).into_response();
    response.headers_mut().insert(header::VARY, header::COOKIE.into());
    Ok(with_cookie(response, &visitor.visit_cookie()))
}
