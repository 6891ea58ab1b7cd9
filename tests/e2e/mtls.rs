//! A bridge on another host: certificates on both sides, and nothing for those that have none.

use std::path::PathBuf;
use std::process::Command;

use kvroute::gateway::Tls;
use kvroute::look::SECRET_HEADER;

use crate::harness::{Conversation, Gateway, Setup, client, eventually, free_address, words};

/// A CA and what it has signed, by OpenSSL's command line; `None` where there is none.
struct Authority(PathBuf);

impl Authority {
    fn new(name: &str) -> Option<Authority> {
        let dir = std::env::temp_dir().join(format!("kvroute-mtls-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let authority = Authority(dir);
        let subject = format!("/CN={name}");
        let args = ["req", "-x509", "-days", "2", "-keyout", "ca.key", "-out", "ca.pem", "-subj", &subject];
        authority.openssl(&[&args[..], &KEY].concat()).then_some(authority)
    }

    fn sign(&self, name: &str, names: &str) {
        let subject = format!("/CN={name}");
        let (key, request) = (format!("{name}.key"), format!("{name}.csr"));
        assert!(self.openssl(&[&["req", "-keyout", &key, "-out", &request, "-subj", &subject][..], &KEY].concat()));
        std::fs::write(self.file("names"), format!("subjectAltName={names}\n")).unwrap();
        let cert = format!("{name}.pem");
        assert!(self.openssl(&[
            "x509",
            "-req",
            "-in",
            &request,
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-days",
            "2",
            "-extfile",
            "names",
            "-out",
            &cert,
        ]));
    }

    fn openssl(&self, args: &[&str]) -> bool {
        let run = Command::new("openssl").args(args).current_dir(&self.0).output();
        run.is_ok_and(|output| output.status.success())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn client(&self, name: Option<&str>) -> reqwest::Client {
        let ca = reqwest::Certificate::from_pem(&std::fs::read(self.file("ca.pem")).unwrap()).unwrap();
        let mut builder = reqwest::Client::builder().no_proxy().tls_built_in_root_certs(false).add_root_certificate(ca);
        if let Some(name) = name {
            let read = |what: &str| std::fs::read(self.file(&format!("{name}.{what}"))).unwrap();
            builder = builder.identity(reqwest::Identity::from_pem(&[read("pem"), read("key")].concat()).unwrap());
        }
        builder.build().unwrap()
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const KEY: [&str; 5] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];

#[tokio::test(flavor = "multi_thread")]
async fn a_bridge_on_another_host_and_envoy_show_each_other_certificates() {
    let Some(authority) = Authority::new("kvroute") else {
        eprintln!("SKIPPED: there is no openssl to make certificates with");
        return;
    };
    authority.sign("envoy", "IP:127.0.0.1");
    authority.sign("bridge", "DNS:kvroute-bridge,IP:127.0.0.1");
    authority.sign("other", "DNS:other,IP:127.0.0.1");
    let file = |name: &str| authority.file(name);
    let tls = Tls {
        ingest: free_address(),
        ca: file("ca.pem"),
        cert: file("envoy.pem"),
        key: file("envoy.key"),
        bridge_name: "kvroute-bridge".into(),
    };
    let ingest = format!("https://{}", tls.ingest);
    let mut setup = Setup { bridge: false, ..Setup::default() };
    setup.bootstrap.tls = Some(tls);
    let mut gateway = Gateway::start(setup).await;
    let path = |name: &str| file(name).to_str().unwrap().to_owned();
    let certificates =
        ["--tls-cert", &path("bridge.pem"), "--tls-key", &path("bridge.key"), "--tls-ca", &path("ca.pem")]
            .map(str::to_owned);
    let address = gateway.start_bridge_with(&ingest, &certificates);

    // The feed arrives, and what it says is compared with what the bridge serves.
    let mut conversation = Conversation::with_system(&words(1, 300));
    gateway.turn(&mut conversation, "one").await;
    eventually("all workers are in step", async || {
        let states = gateway.states().await;
        states.values().all(|s| s.feed.sync == "synced" && s.replicas.iter().any(|r| r.blocks > 0)).then_some(())
    })
    .await;
    let first = gateway.turn(&mut conversation, "two").await;
    assert!(first.outcome.contains("reason=cache"), "{}", first.outcome);

    // Nobody else gets in: neither without a certificate, nor with one of another name, nor without the secret.
    let feed = format!("{ingest}/kvroute/v1/feed");
    for name in [None, Some("other")] {
        assert!(authority.client(name).post(&feed).body("x").send().await.is_err(), "{name:?}");
    }
    let with = authority.client(Some("bridge"));
    assert_eq!(with.post(&feed).body("x").send().await.unwrap().status(), 401);
    let snapshot = format!("https://{address}/kvroute/v1/snapshot");
    assert!(authority.client(None).get(&snapshot).send().await.is_err());
    assert!(client().get(snapshot.replace("https", "http")).send().await.is_err());
    let with = authority.client(Some("envoy"));
    assert_eq!(with.get(&snapshot).send().await.unwrap().status(), 401);
    let secret = &gateway.envoy.bootstrap().secret;
    assert_eq!(with.get(&snapshot).header(SECRET_HEADER, secret).send().await.unwrap().status(), 200);
}
