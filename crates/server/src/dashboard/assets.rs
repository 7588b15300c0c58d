//! The stylesheet, the script and the icon: part of the program, and named by their content, so that browsers keep them
//! for ever and still get the new ones with a new version.

use crate::app::App;
use axum::Router;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use sha2::{Digest as _, Sha256};
use std::sync::{Arc, LazyLock};

/// Browsers may keep an asset as long as they like.
const FOR_EVER: &str = "public, max-age=31536000, immutable";

/// An embedded file.
struct Asset {
    name: &'static str,
    extension: &'static str,
    content_type: &'static str,
    body: &'static str,
}

impl Asset {
    fn path(&self) -> String {
        let hash: String =
            Sha256::digest(self.body).iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        format!("/assets/{}-{hash}.{}", self.name, self.extension)
    }

    fn reply(&self) -> Response {
        ([(header::CONTENT_TYPE, self.content_type), (header::CACHE_CONTROL, FOR_EVER)], self.body)
            .into_response()
    }
}

static STYLE: Asset = Asset {
    name: "style",
    extension: "css",
    content_type: "text/css; charset=utf-8",
    body: include_str!("../../assets/style.css"),
};
static SCRIPT: Asset = Asset {
    name: "app",
    extension: "js",
    content_type: "text/javascript; charset=utf-8",
    body: include_str!("../../assets/app.js"),
};
static ICON: Asset = Asset {
    name: "icon",
    extension: "svg",
    content_type: "image/svg+xml",
    body: include_str!("../../assets/icon.svg"),
};

/// The path of the stylesheet.
pub(super) static STYLE_PATH: LazyLock<String> = LazyLock::new(|| STYLE.path());
/// The path of the script.
pub(super) static SCRIPT_PATH: LazyLock<String> = LazyLock::new(|| SCRIPT.path());
/// The path of the icon.
pub(super) static ICON_PATH: LazyLock<String> = LazyLock::new(|| ICON.path());

/// The routes of the assets.
pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route(&STYLE_PATH, get(async || STYLE.reply()))
        .route(&SCRIPT_PATH, get(async || SCRIPT.reply()))
        .route(&ICON_PATH, get(async || ICON.reply()))
}
