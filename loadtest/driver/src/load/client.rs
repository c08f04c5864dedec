//! What load clients do: produce, consume and ack, the whole cycle; single messages and batches.

use std::fmt::Write as _;

use anyhow::{Context as _, ensure};
use memchr::memmem::Finder;

use super::measure::{LoadClient, Meter, Step};
use crate::http::{Connection, RequestBytes, escape};

const BATCH: usize = 100;
/// A step of a cycle looks for its message so often before it goes on.
const LOOKS_MAX: usize = 20;

/// Sixteen hexadecimal digits of `number`, at the start of `payload`.
pub fn label_into(payload: &mut [u8], number: u64) {
    for (at, digit) in payload.iter_mut().take(16).enumerate() {
        let shift = 60 - 4 * u32::try_from(at).unwrap_or(0);
        let nibble = usize::try_from((number >> shift) & 0xf).unwrap_or(0);
        *digit = b"0123456789abcdef"[nibble];
    }
}

fn text_payload(bytes: usize) -> Vec<u8> {
    let mut payload = vec![b'v'; bytes];
    label_into(&mut payload, 0);
    payload
}

/// Numbers of one connection never meet another's.
fn first_number(connection: usize) -> u64 {
    (u64::try_from(connection).unwrap_or(0) + 1) << 40
}

/// One message a request.
pub struct ProduceOne {
    request: RequestBytes,
    number: u64,
}

impl ProduceOne {
    /// Sends messages of `bytes` bytes to `topic`.
    #[must_use]
    pub fn new(topic: &str, bytes: usize, connection: usize) -> Self {
        let headers = ["X-Veena-Client: load", "Content-Type: application/octet-stream"];
        let request = RequestBytes::new("POST", &format!("/v1/topics/{topic}/produce"), &headers, &text_payload(bytes));
        Self { request, number: first_number(connection) }
    }

    /// Signs in with this `Authorization` line.
    #[must_use]
    pub fn signed_in(self, line: &str) -> Self {
        Self { request: self.request.with_header(line), ..self }
    }

    async fn send(&mut self, connection: &mut Connection, meter: &mut Meter) -> anyhow::Result<bool> {
        self.number += 1;
        label_into(self.request.body_mut(), self.number);
        let start = meter.start();
        let answer = connection.exchange(self.request.as_bytes()).await?;
        let is_accepted = answer.status == 202;
        meter.answered(start, &answer, is_accepted);
        meter.sent(u64::from(is_accepted));
        Ok(is_accepted)
    }
}

impl LoadClient for ProduceOne {
    async fn step(&mut self, connection: &mut Connection, meter: &mut Meter) -> anyhow::Result<Step> {
        if self.send(connection, meter).await? {
            meter.moved(1);
        }
        Ok(Step::Done)
    }
}

/// Reads and acks, one message a request each.
pub struct ConsumeAck {
    consume: RequestBytes,
    ack: String,
    line: Option<String>,
    finder: Finder<'static>,
}

impl ConsumeAck {
    /// From `topic`, waiting up to `wait_ms` for a message.
    #[must_use]
    pub fn new(topic: &str, wait_ms: u64) -> Self {
        Self {
            consume: RequestBytes::get(&format!("/v1/topics/{topic}/consume?wait={wait_ms}ms")),
            ack: format!("/v1/topics/{topic}/ack?receipt_handle="),
            line: None,
            finder: Finder::new(b"\"receipt_handle\":\"").into_owned(),
        }
    }

    /// Signs in with this `Authorization` line.
    #[must_use]
    pub fn signed_in(self, line: &str) -> Self {
        Self { consume: self.consume.with_header(line), line: Some(line.to_owned()), ..self }
    }

    /// True if a message came.
    async fn take(&mut self, connection: &mut Connection, meter: &mut Meter) -> anyhow::Result<bool> {
        let start = meter.start();
        let answer = connection.exchange(self.consume.as_bytes()).await?;
        if answer.status != 200 {
            if answer.status != 204 {
                meter.answered(start, &answer, false);
            }
            return Ok(false);
        }
        meter.answered(start, &answer, true);
        let handle = handles(&self.finder, answer.body).next().context("a message without a receipt handle")?;
        let mut request = RequestBytes::post(&format!("{}{}", self.ack, escape(handle)), b"");
        if let Some(line) = &self.line {
            request = request.with_header(line);
        }
        let start = meter.start();
        let answer = connection.exchange(request.as_bytes()).await?;
        let is_acked = answer.status == 204;
        meter.answered(start, &answer, is_acked);
        meter.moved(u64::from(is_acked));
        Ok(true)
    }
}

impl LoadClient for ConsumeAck {
    async fn step(&mut self, connection: &mut Connection, meter: &mut Meter) -> anyhow::Result<Step> {
        Ok(if self.take(connection, meter).await? { Step::Done } else { Step::Exhausted })
    }
}

fn handles<'a>(finder: &'a Finder<'static>, body: &'a [u8]) -> impl Iterator<Item = &'a str> {
    finder.find_iter(body).filter_map(|at| {
        let behind = &body[at + finder.needle().len()..];
        let end = memchr::memchr(b'"', behind)?;
        std::str::from_utf8(&behind[..end]).ok()
    })
}

/// Sends one, reads one, acks it: three requests a message.
pub struct Cycle {
    produce: ProduceOne,
    consume: ConsumeAck,
}

impl Cycle {
    /// Messages of `bytes` bytes through `topic`.
    #[must_use]
    pub fn new(topic: &str, bytes: usize, connection: usize) -> Self {
        Self { produce: ProduceOne::new(topic, bytes, connection), consume: ConsumeAck::new(topic, 2_000) }
    }
}

impl LoadClient for Cycle {
    async fn step(&mut self, connection: &mut Connection, meter: &mut Meter) -> anyhow::Result<Step> {
        if self.produce.send(connection, meter).await? {
            let came = self.consume.take(connection, meter).await?;
            ensure!(came, "a message was sent, but none came within two seconds");
        }
        Ok(Step::Done)
    }
}

/// A hundred messages a request. Each payload is a JSON string of `bytes` bytes, quotes included, stored as it is.
pub struct ProduceBatch {
    request: RequestBytes,
    labels_at: Vec<usize>,
    number: u64,
}

impl ProduceBatch {
    /// Sends messages of `bytes` bytes to `topic`.
    #[must_use]
    pub fn new(topic: &str, bytes: usize, connection: usize) -> Self {
        Self::to(topic, bytes, connection, &[])
    }

    /// The same to these partitions in turn; to any if none is named.
    #[must_use]
    pub fn to(topic: &str, bytes: usize, connection: usize, partitions: &[u32]) -> Self {
        let payload = String::from_utf8(text_payload(bytes.saturating_sub(2))).unwrap_or_default();
        let mut body = String::from("{\"messages\":[");
        let mut labels_at = Vec::new();
        for at in 0..BATCH {
            body.push_str(if at == 0 { "{\"payload\":\"" } else { ",{\"payload\":\"" });
            labels_at.push(body.len());
            body.push_str(&payload);
            body.push('"');
            if let Some(partition) = partitions.iter().cycle().nth(at) {
                let _ = write!(body, ",\"partition\":{partition}");
            }
            body.push('}');
        }
        body.push_str("]}");
        let request = RequestBytes::post_json(&format!("/v1/topics/{topic}/produce/batch"), body.as_bytes());
        Self { request, labels_at, number: first_number(connection) }
    }

    /// The request alone, for loading a topic; its messages all look the same.
    #[must_use]
    pub fn into_request(self) -> RequestBytes {
        self.request
    }

    /// How many were accepted.
    async fn send(&mut self, connection: &mut Connection, meter: &mut Meter) -> anyhow::Result<u64> {
        let body = self.request.body_mut();
        for at in &self.labels_at {
            self.number += 1;
            label_into(&mut body[*at..], self.number);
        }
        let start = meter.start();
        let answer = connection.exchange(self.request.as_bytes()).await?;
        let is_accepted = answer.status == 202;
        meter.answered(start, &answer, is_accepted);
        let accepted = if is_accepted { u64::try_from(BATCH)? } else { 0 };
        meter.sent(accepted);
        Ok(accepted)
    }
}

impl LoadClient for ProduceBatch {
    async fn step(&mut self, connection: &mut Connection, meter: &mut Meter) -> anyhow::Result<Step> {
        let accepted = self.send(connection, meter).await?;
        meter.moved(accepted);
        Ok(Step::Done)
    }
}

/// Sends a hundred, reads as many as come, acks them at once.
pub struct CycleBatch {
    produce: ProduceBatch,
    consume: String,
    ack: String,
    finder: Finder<'static>,
}

impl CycleBatch {
    /// Messages of `bytes` bytes through `topic`.
    #[must_use]
    pub fn new(topic: &str, bytes: usize, connection: usize) -> Self {
        Self {
            produce: ProduceBatch::new(topic, bytes, connection),
            consume: format!("/v1/topics/{topic}/consume?wait=2000ms&max="),
            ack: format!("/v1/topics/{topic}/ack"),
            finder: Finder::new(b"\"receipt_handle\":\"").into_owned(),
        }
    }

    /// Takes no more than `owed`: a message taken beyond it is one that another connection waits for in vain.
    async fn take(&mut self, owed: u64, connection: &mut Connection, meter: &mut Meter) -> anyhow::Result<u64> {
        let request = RequestBytes::get(&format!("{}{owed}", self.consume));
        let start = meter.start();
        let answer = connection.exchange(request.as_bytes()).await?;
        if answer.status != 200 {
            if answer.status != 204 {
                meter.answered(start, &answer, false);
            }
            return Ok(0);
        }
        meter.answered(start, &answer, true);
        let mut body = String::from("{\"receipt_handles\":[");
        let mut count = 0_u64;
        for handle in handles(&self.finder, answer.body) {
            body.push_str(if count == 0 { "\"" } else { ",\"" });
            body.push_str(handle);
            body.push('"');
            count += 1;
        }
        body.push_str("]}");
        let request = RequestBytes::post_json(&self.ack, body.as_bytes());
        let start = meter.start();
        let answer = connection.exchange(request.as_bytes()).await?;
        let acked = Finder::new(b"\"status\":204").find_iter(answer.body).count();
        let is_whole = answer.status == 200 && u64::try_from(acked)? == count;
        meter.answered(start, &answer, is_whole);
        meter.moved(u64::try_from(acked)?);
        Ok(count)
    }
}

impl LoadClient for CycleBatch {
    async fn step(&mut self, connection: &mut Connection, meter: &mut Meter) -> anyhow::Result<Step> {
        let sent = self.produce.send(connection, meter).await?;
        let mut taken = 0;
        for _ in 0..LOOKS_MAX {
            if taken == sent {
                break;
            }
            let count = self.take(sent - taken, connection, meter).await?;
            if count == 0 {
                break;
            }
            taken += count;
        }
        Ok(Step::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::label_of;

    #[test]
    fn a_label_written_in_place_is_read_back() {
        let mut payload = text_payload(64);
        label_into(&mut payload, 0x00ab_cdef_0000_0001);
        assert_eq!(label_of(&payload).map(|label| label.0), Some(0x00ab_cdef_0000_0001));
        assert_eq!(payload.len(), 64);
    }

    #[test]
    fn every_handle_of_a_batch_is_found() {
        let finder = Finder::new(b"\"receipt_handle\":\"").into_owned();
        let body = br#"{"messages":[{"payload":"x","receipt_handle":"0:1:2"},{"receipt_handle":"1:2:3","id":"a"}]}"#;
        assert_eq!(handles(&finder, body).collect::<Vec<_>>(), ["0:1:2", "1:2:3"]);
    }

    #[test]
    fn a_batch_is_valid_json_with_a_hundred_payloads_of_the_asked_size() {
        let batch = ProduceBatch::new("t", 256, 0);
        let bytes = batch.request.as_bytes();
        let at = bytes.windows(4).position(|w| w == b"\r\n\r\n").expect("a head") + 4;
        let body: serde_json::Value = serde_json::from_slice(&bytes[at..]).expect("JSON");
        let messages = body["messages"].as_array().expect("an array");
        assert_eq!(messages.len(), 100);
        assert_eq!(messages[99]["payload"].as_str().map(str::len), Some(254));
        assert_eq!(messages[99].get("partition"), None);
    }

    #[test]
    fn a_batch_for_some_partitions_goes_round_them() {
        let batch = ProduceBatch::to("t", 64, 0, &[7, 2]);
        let bytes = batch.request.as_bytes();
        let at = bytes.windows(4).position(|w| w == b"\r\n\r\n").expect("a head") + 4;
        let body: serde_json::Value = serde_json::from_slice(&bytes[at..]).expect("JSON");
        let partitions: Vec<u64> = (0..3).filter_map(|at| body["messages"][at]["partition"].as_u64()).collect();
        assert_eq!(partitions, [7, 2, 7]);
    }
}
