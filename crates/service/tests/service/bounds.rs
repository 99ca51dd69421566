//! How much one user may have: files under way, over both ways of submitting, and what is told to who asks
//! for more.

use std::sync::atomic::Ordering;

use longhaul_service::UserFiles;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::isolation::Play;

fn files(play: &Play, name: &str, count: usize) -> Vec<(String, String)> {
    let url = |side: &str, number: usize| format!("{}/{side}/{name}/{number}", play.storage());
    (0..count).map(|number| (url("from", number), url("to", number))).collect()
}

async fn by_fts(play: &Play, who: &str, name: &str, count: usize) -> (u16, Value) {
    let file = |(source, target)| json!({ "sources": [source], "destinations": [target] });
    let list: Vec<Value> = files(play, name, count).into_iter().map(file).collect();
    let (status, answer) = play.request(who, "POST", "/jobs", &json!({ "files": list }).to_string()).await;
    (status, serde_json::from_str(&answer).unwrap())
}

/// The whole answer, head and body.
async fn natively(play: &Play, who: &str, name: &str, count: usize) -> (String, Value) {
    let file = |(source, target)| json!({ "sources": [source], "target": target });
    let list: Vec<Value> = files(play, name, count).into_iter().map(file).collect();
    let (body, address) = (json!({ "files": list }).to_string(), play.world.http_address());
    let head = format!(
        "POST /api/v1/jobs HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nAuthorization: Bearer {}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        play.tokens[who],
        body.len()
    );
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.unwrap();
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    (head.to_ascii_lowercase(), serde_json::from_str(body).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_user_has_so_many_files_under_way() {
    let play = Play::with(|config| {
        config.jobs.user_files = 3;
        let of_others = UserFiles { community: "othervo".parse().unwrap(), files: 5 };
        config.jobs.user_files_of = vec![of_others];
    })
    .await;
    let (status, first) = by_fts(&play, "alice", "a", 2).await;
    assert_eq!(status, 200, "{first}");
    let why = "alice has 2 files under way: with the 2 of this job that would be more than the 3 that one \
        user of testvo \
               may have";
    // FTS's client shows the text of 403, and of 429 nothing but the number.
    let (status, answer) = by_fts(&play, "alice", "b", 2).await;
    assert_eq!((status, answer["status"].as_str()), (403, Some("403 Forbidden")), "{answer}");
    assert!(answer["message"].as_str().unwrap().starts_with(why), "{answer}");
    let (head, answer) = natively(&play, "alice", "b", 2).await;
    assert!(head.starts_with("http/1.1 429 ") && head.contains("retry-after: 60"), "{head}");
    assert_eq!((&answer["status"], &answer["retry_after_s"]), (&json!(429), &json!(60)), "{answer}");
    let told = answer["detail"].as_str().unwrap();
    assert!(told.starts_with(why) && told.contains("service.jobs.user_files"), "{answer}");
    let (head, answer) = natively(&play, "alice", "b", 1).await;
    assert!(head.starts_with("http/1.1 201 "), "what fits is taken: {answer}");
    assert_eq!(by_fts(&play, "alice", "c", 1).await.0, 403);

    // Others have their own; another community another limit.
    assert_eq!(by_fts(&play, "carol", "d", 3).await.0, 200);
    assert_eq!(by_fts(&play, "bob", "e", 5).await.0, 200);
    assert_eq!(by_fts(&play, "bob", "f", 1).await.0, 403);

    // What has ended makes room, also in the eyes of a service that was restarted.
    let job = first["job_id"].as_str().unwrap();
    assert_eq!(play.request("alice", "DELETE", &format!("/jobs/{job}"), "").await.0, 200);
    play.world.shift_s.fetch_add(2, Ordering::Relaxed);
    assert_eq!(by_fts(&play, "alice", "g", 2).await.0, 200);
    let mut play = play;
    play.world.restart().await;
    assert_eq!(by_fts(&play, "alice", "h", 1).await.0, 403);
    play.world.assert_sound().await;
    play.world.stop().await;
}
