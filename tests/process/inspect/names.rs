//! Pods by their names in `kube-proxy explain`: the API server is asked as the running proxy asks it.

use serde_json::{Value, json};

use super::{json as document, run};
use crate::api::cluster::{Cluster, PORTS};
use crate::support::apiserver::Format;
use crate::support::objects::slices;
use crate::support::plan::Family;

/// The slices of a Service in a namespace, whose endpoints are the pods `NAME-0`, `NAME-1`, ... there.
fn with_pods(namespace: &str, name: &str, which: &[u8]) -> Vec<Value> {
    let mut slices = slices(namespace, name, which, &PORTS);
    for slice in &mut slices {
        let endpoints = slice["endpoints"].as_array_mut().expect("a list");
        for (number, endpoint) in endpoints.iter_mut().enumerate() {
            let pod = format!("{name}-{number}");
            endpoint["targetRef"] = json!({ "kind": "Pod", "namespace": namespace, "name": pod, "uid": pod });
        }
    }
    slices
}

// The role of a proxy may list EndpointSlices and no pods; the family is that of the destination.
#[test]
fn a_pod_is_found_by_its_name_in_the_slices_of_its_namespace() {
    let cluster = Cluster::new(Format::Protobuf);
    cluster.server.apply(&with_pods("other", "web", &[3]));
    cluster.server.apply(&with_pods("shop", "web", &[0, 2]));
    // The search reads several pages.
    for number in 0..60 {
        cluster.server.apply(&slices("shop", &format!("more-{number}"), &[1], &PORTS));
    }
    let proxy = cluster.proxy();
    let explain = |from: &str, to: &str| document(&cluster.node, &["explain", "--from", from, "--to", to]);
    for (pod, number) in [("shop/web-1", 2), ("other/web-0", 3)] {
        for (family, to) in [(Family::V4, "10.96.0.1:80"), (Family::V6, "[fd00:10:96::1]:80"), (Family::V4, "shop/web")]
        {
            let (_, told) = explain(pod, to);
            assert_eq!(told["from"], json!(family.endpoint(number)), "{pod} to {to}: {told:#}");
            assert_eq!(told["service"], "shop/web:http", "{told:#}");
        }
    }
    let (_, text, _) = run(&cluster.node, &["explain", "--from", "shop/web-1", "--to", "shop/web"]);
    let begins = format!("{} (shop/web-1) -> 10.96.0.1:80/TCP, ", Family::V4.endpoint(2));
    assert!(text.starts_with(&begins), "{text}");
    // The value of `--to` may be the name of a pod with the number of a port.
    let (code, told) = explain("203.0.113.7", "other/web-0:8080");
    assert_eq!((code, &told["to"]), (Some(0), &json!("10.244.2.11:8080/TCP")), "{told:#}");
    let (code, out, errors) = run(&cluster.node, &["explain", "--from", "203.0.113.7", "--to", "other/web-9:8080"]);
    assert_eq!((code, out.as_str()), (Some(2), ""), "{errors}");
    assert!(errors.contains("no Service other/web-9 in the tables of this node"), "{errors}");
    // The answers of the first page and of the next one were asked for in the namespace alone.
    let lists = cluster.server.requests().iter().filter(|request| request.query.get("limit") == "50").count();
    assert!(lists > 6, "{lists} lists");

    let (code, out, errors) = run(&cluster.node, &["explain", "--from", "shop/web-7", "--to", "shop/web"]);
    assert_eq!((code, out.as_str()), (Some(2), ""), "{errors}");
    assert!(
        errors.contains("no EndpointSlice of namespace shop names it") && errors.contains("give its IP"),
        "{errors}"
    );
    cluster.server.close();
    let (code, _, errors) = run(&cluster.node, &["explain", "--from", "shop/web-1", "--to", "shop/web"]);
    assert!(code == Some(2) && errors.contains("give its IP") && errors.contains("refused"), "{errors}");
    drop(proxy);
    let (code, _, errors) = run(&cluster.node, &["explain", "--from", "shop/web-1", "--to", "shop/web"]);
    assert!(code == Some(2) && errors.contains("no kube-proxy runs here"), "{errors}");
}
