//! A row of the table of routes: where a request goes, and everything that the document and the page about the API say
//! about it. The router and the document are both made from these rows, so that there is no route without a
//! description.

use crate::app::App;
use axum::routing::MethodRouter;
use redrive_core::store::Role;
use std::sync::Arc;

/// What a caller needs to use a route. The table of verbs decides; a test compares.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Nothing: the route shows no data.
    Nothing,
    /// This role.
    Role(Role),
    /// The right to see what is masked for others.
    Reveal,
    /// What the body asks for decides.
    ByBody,
}

impl Needs {
    /// What the page about the API says.
    pub(crate) fn text(self) -> String {
        match self {
            Self::Nothing => "no token".to_owned(),
            Self::Role(role) => role.to_string(),
            Self::Reveal => "viewer who may reveal".to_owned(),
            Self::ByBody => "the role that the body asks for".to_owned(),
        }
    }
}

/// What a body contains, by the name of its shape in `shapes.txt`.
#[derive(Clone, Copy)]
pub(crate) enum Content {
    /// A JSON object.
    Json(&'static str),
    /// A page of a list.
    Page(&'static str),
    /// The results of a batch.
    Results(&'static str),
    /// One JSON object on each line.
    Lines(&'static str),
    /// Text of this type.
    Text(&'static str),
    /// Nothing.
    Empty,
}

/// A route: a method, a path, what answers, and its description.
pub(crate) struct Endpoint {
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    pub(crate) tag: &'static str,
    pub(crate) about: &'static str,
    pub(crate) needs: Needs,
    pub(crate) query: Option<&'static str>,
    /// The headers that it reads, by name and meaning.
    pub(crate) headers: Vec<(&'static str, &'static str)>,
    pub(crate) bodies: Vec<Content>,
    pub(crate) body_required: bool,
    pub(crate) replies: Vec<(u16, Content)>,
    pub(crate) handler: MethodRouter<Arc<App>>,
}

impl Endpoint {
    /// A route that needs a role.
    pub(crate) fn new(
        (method, path): (&'static str, &'static str),
        needs: impl Into<Needs>,
        about: &'static str,
        handler: MethodRouter<Arc<App>>,
    ) -> Self {
        Self {
            method,
            path,
            tag: "",
            about,
            needs: needs.into(),
            query: None,
            headers: Vec::new(),
            bodies: Vec::new(),
            body_required: false,
            replies: Vec::new(),
            handler,
        }
    }

    /// The parameters of the query string.
    pub(crate) fn query(mut self, shape: &'static str) -> Self {
        self.query = Some(shape);
        self
    }

    /// A header that it reads.
    pub(crate) fn header(mut self, name: &'static str, about: &'static str) -> Self {
        self.headers.push((name, about));
        self
    }

    /// Adds the request key to what an audited act, an operation or a change of configuration reads.
    pub(crate) fn with_request_key(self) -> Self {
        let acts = match self.needs {
            Needs::Role(Role::Operator | Role::Editor | Role::Admin) => true,
            Needs::Role(Role::Viewer | Role::Producer | Role::Worker)
            | Needs::Nothing
            | Needs::Reveal
            | Needs::ByBody => false,
        };
        // Previews change nothing, letters are imported by their ids, and tokens and alerts are not audited acts.
        let other = ["/preview", "/import", "/test"].iter().any(|end| self.path.ends_with(end))
            || ["/api/v1/tokens", "/api/v1/alerts"].iter().any(|begin| self.path.starts_with(begin));
        if self.method == "GET" || !acts || other {
            return self;
        }
        let about = "Makes repeating the request harmless for 24 hours: the same key and request give the recorded reply, \
                     and the same key with another request is refused with `key_conflict`.";
        self.header("Idempotency-Key", about)
    }

    /// A body that must be there.
    pub(crate) fn takes(mut self, content: Content) -> Self {
        self.bodies.push(content);
        self.body_required = true;
        self
    }

    /// A JSON body that may be left out.
    pub(crate) fn may_take(mut self, shape: &'static str) -> Self {
        self.bodies.push(Content::Json(shape));
        self
    }

    /// A reply that reports success.
    pub(crate) fn gives(mut self, status: u16, content: Content) -> Self {
        self.replies.push((status, content));
        self
    }

    /// The usual reply: a JSON object.
    pub(crate) fn shows(self, shape: &'static str) -> Self {
        self.gives(200, Content::Json(shape))
    }

    /// A page of a list.
    pub(crate) fn lists(self, shape: &'static str) -> Self {
        self.gives(200, Content::Page(shape))
    }

    /// The variables in the path.
    pub(crate) fn variables(&self) -> impl Iterator<Item = &'static str> {
        self.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
    }

    /// A name for generated clients, such as `get_queues_queue`.
    pub(crate) fn operation_id(&self) -> String {
        let path = self.path.trim_start_matches("/api/v1").replace(['{', '}'], "");
        let words: Vec<&str> = path.split(['/', '-', '.']).filter(|word| !word.is_empty()).collect();
        format!("{}_{}", self.method.to_ascii_lowercase(), words.join("_"))
    }
}

impl From<Role> for Needs {
    fn from(role: Role) -> Self {
        Self::Role(role)
    }
}
