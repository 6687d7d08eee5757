//! Makes lists: whole or in pages, of the present objects or of those at a version.
//!
//! Takes the store and a query, and returns a List object or a [`Refusal`]. Pure.

use std::sync::Arc;

use serde_json::{Value, json};

use super::query::Query;
use super::resource::Resource;
use super::selector::Selector;
use super::status::Refusal;
use super::store::{Name, Store, TooOld, identity};

/// Returns the selectors of a query.
pub(crate) fn selector(resource: Resource, query: &Query) -> Result<Selector, Refusal> {
    Selector::parse(resource, query.get("labelSelector"), query.get("fieldSelector"))
        .map_err(|why| Refusal::new(400, why))
}

/// Where a list starts, and what it shows.
struct Start {
    version: u64,
    after: Option<Name>,
    limit: usize,
}

/// Returns a list, or a page of it. `cached` is the version of the watch cache, if there is one.
pub(crate) fn list(store: &Store, cached: Option<u64>, resource: Resource, query: &Query) -> Result<Value, Refusal> {
    let selector = selector(resource, query)?;
    let start = start(store, cached, query)?;
    let objects = store.at(resource, start.version, &selector).map_err(|too_old| expired(&start, too_old))?;
    let after = start.after.as_ref();
    let rest: Vec<&Arc<Value>> =
        objects.iter().filter(|object| after.is_none_or(|name| identity(object).1 > *name)).collect();
    let (page, left) = rest.split_at(start.limit.min(rest.len()));
    let mut metadata = json!({ "resourceVersion": start.version.to_string() });
    if let (Some(last), false) = (page.last(), left.is_empty()) {
        metadata["continue"] = json!(token(start.version, &identity(last).1));
        if selector == Selector::default() {
            metadata["remainingItemCount"] = json!(left.len());
        }
    }
    Ok(json!({
        "kind": format!("{}List", resource.kind()), "apiVersion": resource.api_version(),
        "metadata": metadata, "items": page.iter().map(|object| item(object)).collect::<Vec<_>>(),
    }))
}

fn start(store: &Store, cached: Option<u64>, query: &Query) -> Result<Start, Refusal> {
    let limit = match query.get("limit") {
        "" | "0" => usize::MAX,
        text => text.parse().map_err(|_| Refusal::new(400, format!("limit: {text:?} is no number")))?,
    };
    let (version, rule) = (query.get("resourceVersion"), query.get("resourceVersionMatch"));
    let present = Start { version: store.version(), after: None, limit };
    let next = query.get("continue");
    if !next.is_empty() {
        if !matches!(version, "" | "0") || !rule.is_empty() {
            return Err(Refusal::new(400, "specifying resource version is not allowed when using continue"));
        }
        let (version, after) = read_token(next).ok_or_else(|| Refusal::new(400, "continue key is not valid"))?;
        return Ok(Start { version, after: Some(after), limit });
    }
    let number = number(version)?;
    let of_cache = cached.unwrap_or(present.version);
    match (rule, number) {
        ("Exact", Some(wanted)) if wanted > store.version() => Err(too_large(wanted, store.version())),
        ("" | "NotOlderThan", Some(wanted)) if wanted > of_cache => Err(too_large(wanted, of_cache)),
        // The watch cache of a real server answers such lists, and does not divide them into pages.
        ("" | "NotOlderThan", Some(0)) if cached.is_some() => {
            Ok(Start { version: of_cache, limit: usize::MAX, ..present })
        }
        ("NotOlderThan", Some(_)) => Ok(Start { version: of_cache, ..present }),
        ("", None | Some(0)) => Ok(present),
        ("", Some(_)) if limit == usize::MAX => Ok(present),
        ("" | "Exact", Some(wanted)) if wanted > 0 => Ok(Start { version: wanted, ..present }),
        _ => Err(Refusal::new(422, format!("resourceVersionMatch {rule:?} with version {version:?} is forbidden"))),
    }
}

/// Reads a version in a query; `None` if it is not given.
pub(crate) fn number(version: &str) -> Result<Option<u64>, Refusal> {
    if version.is_empty() {
        return Ok(None);
    }
    version.parse().map(Some).map_err(|_| Refusal::new(400, format!("invalid resource version {version:?}")))
}

fn too_large(wanted: u64, present: u64) -> Refusal {
    Refusal::new(504, format!("Too large resource version: {wanted}, current: {present}")).after(1)
}

fn expired(start: &Start, TooOld(oldest): TooOld) -> Refusal {
    let what = if start.after.is_some() { "the provided continue parameter" } else { "the provided version" };
    Refusal::new(410, format!("{what} is too old: {} ({oldest})", start.version))
}

fn token(version: u64, (namespace, name): &Name) -> String {
    format!("{version}/{namespace}/{name}")
}

fn read_token(text: &str) -> Option<(u64, Name)> {
    let mut parts = text.splitn(3, '/');
    let version = parts.next()?.parse().ok()?;
    Some((version, (parts.next()?.to_owned(), parts.next()?.to_owned())))
}

/// Returns an object as lists have it, without `kind` and `apiVersion`: the list names them once for all objects.
fn item(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(fields) = object.as_object_mut() {
        fields.remove("kind");
        fields.remove("apiVersion");
    }
    object
}
