//! What the pods of `envoy/kubernetes` do besides routing: probes, metrics, the end.

use std::process::Stdio;
use std::time::Duration;

use kvroute::mock::Speed;
use serde_json::Value;

use super::manifests::{documents, one};
use crate::harness::{Conversation, Gateway, client, eventually, words};

fn envoy() -> Value {
    let all = documents("kubernetes/gateway.yaml");
    let pod = &one(&all, "Deployment", "kvroute-gateway")["spec"]["template"]["spec"];
    let containers = pod["containers"].as_array().unwrap();
    containers.iter().find(|c| c["name"] == "envoy").unwrap().clone()
}

/// The listener that probes and Prometheus ask.
fn metrics_address(gateway: &Gateway) -> String {
    let page: Value = serde_json::from_str(&gateway.envoy.admin_get("/listeners?format=json").unwrap()).unwrap();
    let all = page["listener_statuses"].as_array().unwrap();
    let at = &all.iter().find(|l| l["name"] == "kvroute_metrics").unwrap()["local_address"]["socket_address"];
    format!("http://{}:{}", at["address"].as_str().unwrap(), at["port_value"])
}

/// The probes' paths answer, and nothing else of the admin interface does.
pub async fn metrics_and_readiness(gateway: &Gateway) {
    let base = metrics_address(gateway);
    let get = async |path: &str| {
        let response = client().get(format!("{base}{path}")).send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    };
    let probe = envoy()["readinessProbe"]["httpGet"]["path"].as_str().unwrap().to_owned();
    assert_eq!(get(&probe).await.0, 200);
    let (status, page) = get("/stats/prometheus").await;
    assert!(status == 200 && page.contains("kvroute_requests_total"), "{status}");
    let (status, page) = get("/bridge/metrics").await;
    assert!(status == 200 && page.contains("kvroute_bridge_trust"), "{status}: {page}");
    for path in ["/", "/config_dump", "/quitquitquit", "/kvroute/v1/replicas", "/bridge", "/stats"] {
        assert_eq!(get(path).await.0, 404, "{path}");
    }
}

/// The hook takes the pod out of the service at once, and returns when the last answer has ended.
pub async fn the_pre_stop_hook_waits_for_answers(gateway: &Gateway) {
    let envoy = envoy();
    let command = envoy["lifecycle"]["preStop"]["exec"]["command"].as_array().unwrap();
    let script = command[2].as_str().unwrap();
    let admin = gateway.envoy.admin();
    assert!(script.contains("/127.0.0.1/9901") && script.contains("sleep 15\n"), "{script}");
    let script = script.replace("/127.0.0.1/9901", &format!("/{}/{}", admin.ip(), admin.port()));
    let script = script.replace("sleep 15\n", "");
    for index in 0..3 {
        gateway.replica(index).set_speed(Speed { prefill: Duration::ZERO, decode: Duration::from_millis(200) });
    }
    let body = Conversation::with_system(&words(77, 40)).body();
    let request = client().post(gateway.url("/v1/chat/completions")).header("content-type", "application/json");
    let answer = tokio::spawn(request.body(body).send());
    let active = || gateway.envoy.stat("http.public.downstream_rq_active").unwrap();
    eventually("the request is under way", async || (active() == 1).then_some(())).await;
    let mut hook = tokio::process::Command::new("bash");
    hook.args(["-c", &script]).stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
    let hook = tokio::spawn(async move { hook.status().await.unwrap() });
    let ready = format!("{}/ready", metrics_address(gateway));
    eventually("it is not ready any more", async || {
        let status = client().get(&ready).send().await.ok()?.status();
        (status == 503).then_some(())
    })
    .await;
    assert!(hook.await.unwrap().success());
    assert_eq!(active(), 0);
    assert_eq!(answer.await.unwrap().unwrap().status(), 200);
}
