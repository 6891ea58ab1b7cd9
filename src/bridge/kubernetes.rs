//! Replicas behind a Kubernetes service, followed through its EndpointSlices: listed once, then watched.
//!
//! Only what this needs of the API, over the HTTP client that the bridge has anyway: `list` and `watch` of
//! `discovery.k8s.io/v1 endpointslices` in one namespace (`envoy/kubernetes/rbac.yaml` allows them). The token is read
//! again for each request, since Kubernetes rotates it.
//!
//! What an endpoint is for says the label `llm-d.ai/role` of its pod, else that of the service (which its slices have as
//! well), else the settings. Pods are only listed, when an address is new, and only where that is allowed.
//!
//! An endpoint is followed from the first time that it is ready until it is gone or terminating: one that fails a
//! probe for a moment keeps its blocks, and whether it gets requests is Envoy's to decide.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::StreamExt;
use serde::Deserialize;
use tokio::sync::watch;

use super::dns::NamedReplicas;
use crate::feed::role::{ROLE_LABEL, Role};

/// Where Kubernetes puts what a pod needs to ask its API.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The server ends a watch after so long, and it is begun anew.
const WATCH_SECONDS: u64 = 290;
/// A watch that says nothing for longer is dead: the server sends bookmarks about once a minute.
const WATCH_SILENCE: Duration = Duration::from_secs(WATCH_SECONDS + 20);
const LIST_TIMEOUT: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_secs(1);
const MAX_LINE_BYTES: usize = 4 << 20;

/// How to reach the API.
#[derive(Clone, Debug)]
pub struct Api {
    base: String,
    token: Option<PathBuf>,
    client: reqwest::Client,
    namespace: String,
}

impl Api {
    /// The API of the cluster that this pod runs in, or the one at `url` (`kubectl proxy`, say) without a token.
    pub fn new(url: Option<&str>) -> Result<Api, String> {
        let account = Path::new(ACCOUNT);
        let namespace = std::fs::read_to_string(account.join("namespace")).unwrap_or_else(|_| "default".into());
        let namespace = namespace.trim().to_owned();
        let builder = reqwest::Client::builder().connect_timeout(Duration::from_secs(5)).no_proxy();
        let build = |b: reqwest::ClientBuilder| b.build().map_err(|e| format!("Kubernetes API: {e}"));
        if let Some(url) = url {
            let base = url.trim_end_matches('/').to_owned();
            return Ok(Api { base, token: None, client: build(builder)?, namespace });
        }
        let variable = |name: &str| {
            std::env::var(name).map_err(|_| {
                format!("{name} is not set: run the bridge in a pod, or give --kubernetes-api http://HOST:PORT")
            })
        };
        let (host, port) = (variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?);
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        let authority = account.join("ca.crt");
        let pem = std::fs::read(&authority).map_err(|e| format!("{}: {e}", authority.display()))?;
        let authority = reqwest::Certificate::from_pem(&pem).map_err(|e| format!("{}: {e}", authority.display()))?;
        let client = build(builder.add_root_certificate(authority).tls_built_in_root_certs(false))?;
        Ok(Api { base: format!("https://{host}:{port}"), token: Some(account.join("token")), client, namespace })
    }

    fn get(&self, service: &Service, query: &str) -> reqwest::RequestBuilder {
        let Service { namespace, name } = service;
        let url = format!(
            "{}/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?labelSelector=kubernetes.io%2F\
             service-name%3D{name}{query}",
            self.base
        );
        self.signed(self.client.get(url))
    }

    /// The roles of the pods that have one, by address. `None`: this may not be asked.
    async fn roles(&self, namespace: &str) -> Result<Option<BTreeMap<IpAddr, Role>>, String> {
        let label = ROLE_LABEL.replace('/', "%2F");
        let request =
            self.client.get(format!("{}/api/v1/namespaces/{namespace}/pods?labelSelector={label}", self.base));
        let response = self.signed(request).timeout(LIST_TIMEOUT).send().await.map_err(|e| e.to_string())?;
        match response.status() {
            reqwest::StatusCode::FORBIDDEN => return Ok(None),
            status if !status.is_success() => return Err(format!("pods: status {status}")),
            _ => {}
        }
        let pods: Pods = response.json().await.map_err(|e| format!("pods: {e}"))?;
        let mut roles = BTreeMap::new();
        for pod in pods.items {
            let role = pod.metadata.labels.get(ROLE_LABEL).and_then(|label| Role::from_label(label));
            let (Some(role), Some(status)) = (role, pod.status) else { continue };
            let all = std::iter::once(status.pod_ip).chain(status.pod_ips.into_iter().map(|ip| ip.ip));
            roles.extend(all.filter_map(|ip| Some((ip.parse().ok()?, role))));
        }
        Ok(Some(roles))
    }

    fn signed(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        match self.token.as_ref().and_then(|path| std::fs::read_to_string(path).ok()) {
            Some(token) => request.bearer_auth(token.trim()),
            None => request,
        }
    }

    async fn list(&self, service: &Service) -> Result<List, String> {
        let response = self.get(service, "").timeout(LIST_TIMEOUT).send().await.map_err(|e| e.to_string())?;
        let status = response.status();
        if status == reqwest::StatusCode::FORBIDDEN {
            return Err(format!(
                "may not list endpointslices in {}: see envoy/kubernetes/rbac.yaml",
                service.namespace
            ));
        }
        if !status.is_success() {
            return Err(format!("status {status}"));
        }
        response.json().await.map_err(|e| e.to_string())
    }
}

#[derive(Clone, Debug)]
struct Service {
    namespace: String,
    name: String,
}

#[derive(Deserialize)]
struct List {
    metadata: ListMeta,
    #[serde(default)]
    items: Vec<Slice>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ListMeta {
    resource_version: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Slice {
    metadata: Meta,
    endpoints: Option<Vec<Endpoint>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Meta {
    name: String,
    resource_version: String,
    labels: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Pods {
    #[serde(default)]
    items: Vec<Pod>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Pod {
    metadata: Meta,
    status: Option<PodStatus>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PodStatus {
    #[serde(rename = "podIP")]
    pod_ip: String,
    #[serde(rename = "podIPs")]
    pod_ips: Vec<PodIp>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PodIp {
    ip: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Endpoint {
    addresses: Vec<String>,
    conditions: Conditions,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct Conditions {
    ready: Option<bool>,
    terminating: Option<bool>,
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    object: serde_json::Value,
}

/// The endpoints of a service, as its slices tell them.
#[derive(Debug, Default)]
struct Slices {
    /// By slice: address to (ready, terminating).
    slices: BTreeMap<String, BTreeMap<IpAddr, (bool, bool)>>,
    followed: BTreeSet<IpAddr>,
    /// What the slices themselves say, by slice.
    roles: BTreeMap<String, Role>,
    /// What the pods say; `None`: nothing. Addresses that are not here were not asked for.
    of_pods: BTreeMap<IpAddr, Option<Role>>,
}

/// The addresses to follow and what each is for, where that is said; `None` before the first answer.
pub type Found = Option<BTreeMap<IpAddr, Option<Role>>>;

impl Slices {
    fn put(&mut self, slice: Slice) {
        match slice.metadata.labels.get(ROLE_LABEL).and_then(|label| Role::from_label(label)) {
            Some(role) => drop(self.roles.insert(slice.metadata.name.clone(), role)),
            None => drop(self.roles.remove(&slice.metadata.name)),
        }
        let mut endpoints = BTreeMap::new();
        for endpoint in slice.endpoints.unwrap_or_default() {
            let Conditions { ready, terminating } = endpoint.conditions;
            // Not said means ready, by the API's own rule.
            let state = (ready.unwrap_or(true), terminating.unwrap_or(false));
            // Names instead of addresses are not what Envoy sees.
            endpoints.extend(endpoint.addresses.iter().filter_map(|a| Some((a.parse().ok()?, state))));
        }
        self.slices.insert(slice.metadata.name, endpoints);
    }

    /// The addresses to follow.
    fn addresses(&mut self) -> BTreeSet<IpAddr> {
        let mut now = BTreeSet::new();
        for (address, (ready, terminating)) in self.slices.values().flatten() {
            if !terminating && (*ready || self.followed.contains(address)) {
                now.insert(*address);
            }
        }
        self.followed = now.clone();
        now
    }

    /// Looks what the pods are for that are new here.
    async fn ask_roles(&mut self, api: &Api, service: &Service) {
        let now = self.addresses();
        self.of_pods.retain(|address, _| now.contains(address));
        if now.iter().all(|address| self.of_pods.contains_key(address)) {
            return;
        }
        match api.roles(&service.namespace).await {
            Ok(roles) => {
                if roles.is_none() {
                    tracing::debug!("may not list pods in {}: their {ROLE_LABEL} is not looked at", service.namespace);
                }
                let roles = roles.unwrap_or_default();
                self.of_pods = now.iter().map(|address| (*address, roles.get(address).copied())).collect();
            }
            // Asked again when something changes.
            Err(error) => tracing::debug!("{ROLE_LABEL}: {error}"),
        }
    }

    fn found(&mut self) -> BTreeMap<IpAddr, Option<Role>> {
        let role = |address: &IpAddr| {
            let of_slice = || {
                let mut slices = self.slices.iter().filter(|(_, endpoints)| endpoints.contains_key(address));
                slices.find_map(|(name, _)| self.roles.get(name).copied())
            };
            self.of_pods.get(address).copied().flatten().or_else(of_slice)
        };
        self.followed.iter().map(|address| (*address, role(address))).collect()
    }
}

/// Follows one service until it is aborted. What it finds goes to `found`; `None` before the first answer.
pub async fn follow(api: Api, replicas: NamedReplicas, found: watch::Sender<Found>) {
    let host = replicas.host();
    let (name, namespace) = host.split_once('.').unwrap_or((host, &api.namespace));
    // `NAME.NAMESPACE.svc.cluster.local` is as good.
    let namespace = namespace.split('.').next().unwrap_or(namespace);
    let service = Service { name: name.to_owned(), namespace: namespace.to_owned() };
    let mut slices = Slices::default();
    let mut shown = None;
    loop {
        let error = match api.list(&service).await {
            Ok(list) => {
                shown = None;
                slices.slices.clear();
                slices.roles.clear();
                list.items.into_iter().for_each(|slice| slices.put(slice));
                slices.ask_roles(&api, &service).await;
                tell(&found, slices.found());
                let mut version = list.metadata.resource_version;
                // A watch that ends in order goes on where it was; one that is told it is too old lists anew.
                loop {
                    match watch_once(&api, &service, &mut version, &mut slices, &found).await {
                        Ok(true) => {}
                        Ok(false) => break None,
                        Err(error) => break Some(error),
                    }
                }
            }
            Err(error) => Some(error),
        };
        if let Some(error) = error
            && shown.as_ref() != Some(&error)
        {
            tracing::warn!("EndpointSlices of {host}: {error}; its replicas stay as they were");
            shown = Some(error);
        }
        tokio::time::sleep(RETRY).await;
    }
}

fn tell(found: &watch::Sender<Found>, addresses: BTreeMap<IpAddr, Option<Role>>) {
    found.send_if_modified(|known| {
        let changed = known.as_ref() != Some(&addresses);
        if changed {
            *known = Some(addresses);
        }
        changed
    });
}

/// One watch. True: it ended, and the next one can go on from `version`; false: list anew.
async fn watch_once(
    api: &Api,
    service: &Service,
    version: &mut String,
    slices: &mut Slices,
    found: &watch::Sender<Found>,
) -> Result<bool, String> {
    let query =
        format!("&watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={version}");
    let response = api.get(service, &query).send().await.map_err(|e| e.to_string())?;
    match response.status() {
        status if status.is_success() => {}
        reqwest::StatusCode::GONE => return Ok(false),
        status => return Err(format!("watch: status {status}")),
    }
    let (mut body, mut buffer, mut any) = (response.bytes_stream(), Vec::new(), false);
    loop {
        let chunk = match tokio::time::timeout(WATCH_SILENCE, body.next()).await {
            Ok(Some(Ok(chunk))) => chunk,
            Ok(Some(Err(error))) => return Err(error.to_string()),
            // Nothing at all, again and again, would be a busy loop.
            Ok(None) if !any => return Ok(false),
            Ok(None) => return Ok(true),
            Err(_) => return Err("watch: silent".into()),
        };
        buffer.extend_from_slice(&chunk);
        while let Some(end) = buffer.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = buffer.drain(..=end).collect();
            let event: Event = serde_json::from_slice(&line).map_err(|e| format!("watch: {e}"))?;
            any = true;
            if event.kind == "ERROR" {
                // Most often 410: the version is too old.
                return Ok(false);
            }
            let slice: Slice = serde_json::from_value(event.object).map_err(|e| format!("watch: {e}"))?;
            version.clone_from(&slice.metadata.resource_version);
            match event.kind.as_str() {
                "ADDED" | "MODIFIED" => slices.put(slice),
                "DELETED" => {
                    slices.slices.remove(&slice.metadata.name);
                    slices.roles.remove(&slice.metadata.name);
                }
                _ => continue,
            }
            slices.ask_roles(api, service).await;
            tell(found, slices.found());
        }
        if buffer.len() > MAX_LINE_BYTES {
            return Err("watch: a line without end".into());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use axum::Router;
    use axum::body::{Body, Bytes};
    use axum::extract::{Query, State};
    use axum::http::StatusCode;
    use axum::response::{IntoResponse, Response};
    use axum::routing::get;
    use serde_json::{Value, json};
    use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

    use super::*;

    /// What the API answers next: lists from the front, and the events of the watch under way.
    struct Fake {
        lists: Vec<Value>,
        watches: Vec<UnboundedReceiver<Value>>,
        asked: Vec<BTreeMap<String, String>>,
        /// `None`: pods may not be listed.
        pods: Option<Value>,
    }

    async fn pods(State(fake): State<Arc<Mutex<Fake>>>) -> Response {
        match &fake.lock().unwrap().pods {
            Some(pods) => axum::Json(pods.clone()).into_response(),
            None => StatusCode::FORBIDDEN.into_response(),
        }
    }

    async fn answer(State(fake): State<Arc<Mutex<Fake>>>, Query(query): Query<BTreeMap<String, String>>) -> Response {
        let mut fake = fake.lock().unwrap();
        fake.asked.push(query.clone());
        if !query.contains_key("watch") {
            let list = if fake.lists.len() > 1 { fake.lists.remove(0) } else { fake.lists[0].clone() };
            return axum::Json(list).into_response();
        }
        if fake.watches.is_empty() {
            return StatusCode::GONE.into_response();
        }
        let events = fake.watches.remove(0);
        let lines = futures::stream::unfold(events, async |mut events| {
            let event = events.recv().await?;
            Some((Ok::<_, std::io::Error>(Bytes::from(format!("{event}\n"))), events))
        });
        Body::from_stream(lines).into_response()
    }

    fn slice(name: &str, version: &str, endpoints: &[(&str, bool, bool)]) -> Value {
        let endpoints: Vec<Value> = endpoints
            .iter()
            .map(|(address, ready, terminating)| {
                json!({"addresses": [address], "conditions": {"ready": ready, "serving": ready, "terminating": terminating}})
            })
            .collect();
        json!({"metadata": {"name": name, "resourceVersion": version}, "addressType": "IPv4", "endpoints": endpoints})
    }

    fn event(kind: &str, object: Value) -> Value {
        json!({"type": kind, "object": object})
    }

    fn addresses(list: &[&str]) -> Found {
        Some(list.iter().map(|a| (a.parse().unwrap(), None)).collect())
    }

    type Seen = watch::Receiver<Found>;

    async fn setup(lists: Vec<Value>, watches: usize) -> (Vec<UnboundedSender<Value>>, Seen, Arc<Mutex<Fake>>) {
        let (senders, receivers) = (0..watches).map(|_| unbounded_channel()).unzip();
        let fake = Arc::new(Mutex::new(Fake { lists, watches: receivers, asked: Vec::new(), pods: None }));
        let path = "/apis/discovery.k8s.io/v1/namespaces/models/endpointslices";
        let app = Router::new().route(path, get(answer)).route("/api/v1/namespaces/models/pods", get(pods));
        let app = app.with_state(fake.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let api = Api::new(Some(&format!("http://{}/", listener.local_addr().unwrap()))).unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await });
        let replicas = NamedReplicas::parse("http=http://vllm.models:8000,model=m,kv=tcp://vllm.models:5557").unwrap();
        let (found, seen) = watch::channel(None);
        tokio::spawn(follow(api, replicas, found));
        (senders, seen, fake)
    }

    async fn becomes(seen: &mut Seen, expected: &[&str]) {
        become_these(seen, addresses(expected)).await;
    }

    async fn become_these(seen: &mut Seen, expected: Found) {
        let waits = seen.wait_for(|now| *now == expected);
        tokio::time::timeout(Duration::from_secs(30), waits).await.expect("in time").unwrap();
    }

    #[tokio::test]
    async fn endpoints_come_flap_and_go() {
        let list = json!({"metadata": {"resourceVersion": "10"}, "items": [
            slice("a", "9", &[("10.0.0.1", true, false), ("10.0.0.2", false, false)]),
            slice("b", "8", &[("10.0.1.1", true, false), ("not-an-address", true, false)]),
        ]});
        let (watches, mut seen, fake) = setup(vec![list], 1).await;
        becomes(&mut seen, &["10.0.0.1", "10.0.1.1"]).await;
        let send = |e: Value| watches[0].send(e).unwrap();
        // The second is ready now; the first fails a probe, and stays.
        send(event("MODIFIED", slice("a", "11", &[("10.0.0.1", false, false), ("10.0.0.2", true, false)])));
        becomes(&mut seen, &["10.0.0.1", "10.0.0.2", "10.0.1.1"]).await;
        send(event("BOOKMARK", json!({"metadata": {"resourceVersion": "12"}})));
        // One ends, the other's slice goes away.
        send(event("MODIFIED", slice("a", "13", &[("10.0.0.1", true, true), ("10.0.0.2", true, false)])));
        send(event("DELETED", slice("b", "14", &[])));
        becomes(&mut seen, &["10.0.0.2"]).await;
        // Had it gone while it was not ready, it would have to become ready again.
        send(event("MODIFIED", slice("a", "15", &[("10.0.0.1", false, false), ("10.0.0.2", true, false)])));
        send(event("ADDED", slice("c", "16", &[("10.0.2.1", true, false)])));
        becomes(&mut seen, &["10.0.0.2", "10.0.2.1"]).await;
        let asked = &fake.lock().unwrap().asked;
        assert!(asked.iter().all(|q| q["labelSelector"] == "kubernetes.io/service-name=vllm"));
        assert_eq!(asked.iter().find(|q| q.contains_key("watch")).unwrap()["resourceVersion"], "10");
    }

    #[tokio::test]
    async fn a_watch_goes_on_and_one_that_is_too_old_lists_anew() {
        let list = |version: &str, at: &str| json!({"metadata": {"resourceVersion": version}, "items": [slice("a", version, &[(at, true, false)])]});
        let (mut watches, mut seen, fake) = setup(vec![list("10", "10.0.0.1"), list("50", "10.0.0.9")], 2).await;
        becomes(&mut seen, &["10.0.0.1"]).await;
        let first = watches.remove(0);
        first.send(event("MODIFIED", slice("a", "11", &[("10.0.0.2", true, false)]))).unwrap();
        drop(first); // its time is over
        becomes(&mut seen, &["10.0.0.2"]).await;
        watches[0].send(event("MODIFIED", slice("a", "12", &[("10.0.0.3", true, false)]))).unwrap();
        becomes(&mut seen, &["10.0.0.3"]).await;
        watches[0].send(event("ERROR", json!({"code": 410, "message": "too old resource version"}))).unwrap();
        becomes(&mut seen, &["10.0.0.9"]).await;
        let asked = &fake.lock().unwrap().asked;
        let versions: Vec<_> = asked.iter().filter_map(|q| q.get("resourceVersion").cloned()).collect();
        assert_eq!(versions[..2], ["10", "11"]);
    }

    #[tokio::test]
    async fn the_label_of_the_pod_says_what_it_is_for_else_that_of_the_service() {
        let labelled = |role: &str| {
            let mut slice = slice("a", "9", &[("10.0.0.1", true, false), ("10.0.0.2", true, false)]);
            slice["metadata"]["labels"] = json!({"llm-d.ai/role": role});
            slice
        };
        let list = json!({"metadata": {"resourceVersion": "10"}, "items": [labelled("decode")]});
        let (watches, mut seen, fake) = setup(vec![list], 1).await;
        let roles = |list: &[(&str, Role)]| -> Found {
            Some(list.iter().map(|(at, role)| (at.parse().unwrap(), Some(*role))).collect())
        };
        // Pods may not be listed.
        become_these(&mut seen, roles(&[("10.0.0.1", Role::Decode), ("10.0.0.2", Role::Decode)])).await;
        let pod = |role: &str, ip: &str| json!({"metadata": {"labels": {"llm-d.ai/role": role}}, "status": {"podIP": ip, "podIPs": [{"ip": ip}]}});
        let pods = [pod("prefill", "10.0.0.3"), pod("something", "10.0.0.1"), json!({"metadata": {"name": "pending"}})];
        fake.lock().unwrap().pods = Some(json!({"items": pods}));
        watches[0].send(event("ADDED", slice("b", "11", &[("10.0.0.3", true, false)]))).unwrap();
        let all = [("10.0.0.1", Role::Decode), ("10.0.0.2", Role::Decode), ("10.0.0.3", Role::Prefill)];
        become_these(&mut seen, roles(&all)).await;
        let replicas = NamedReplicas::parse("http=http://vllm:8000,model=m").unwrap();
        let specs = replicas.with_roles(seen.borrow().as_ref().unwrap());
        assert_eq!(specs.iter().map(|spec| spec.role).collect::<Vec<_>>(), [Role::Decode, Role::Decode, Role::Prefill]);
    }

    #[test]
    fn outside_of_a_cluster_the_mend_is_named() {
        if std::env::var_os("KUBERNETES_SERVICE_HOST").is_none() {
            assert!(Api::new(None).unwrap_err().contains("--kubernetes-api"));
        }
    }
}
