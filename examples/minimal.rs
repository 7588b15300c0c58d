//! A durable worker: `cargo run -p redrive --example minimal`. Kill it and start it again: nothing is lost.

use redrive::{OpenOptions, Outcome, Worker};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Charge {
    customer: String,
    cents: u64,
}

async fn charge(charge: Charge) -> Outcome {
    if charge.cents == 0 {
        return Outcome::dead_letter(format!("nothing to charge {}", charge.customer));
    }
    Outcome::Done
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = redrive::open("redrive-data", OpenOptions::default()).await?;
    for cents in [1200, 0] {
        redrive::send(&store, "payments", "charge", &Charge { customer: "ada".into(), cents }).await?;
    }
    let worker = Worker::builder(store).queue("payments").handler("charge", charge).until_empty().build()?;
    assert_eq!(worker.run().await?.done, 1); // the other one is a dead letter: `redrive dlq list`
    Ok(())
}
