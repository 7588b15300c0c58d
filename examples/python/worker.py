"""A worker over plain HTTP. Run: REDRIVE_URL=http://127.0.0.1:7373 REDRIVE_TOKEN=rdt_... python3 worker.py payments"""
import json, os, sys, traceback, urllib.request

URL, TOKEN, QUEUE = os.environ["REDRIVE_URL"], os.environ["REDRIVE_TOKEN"], sys.argv[1]

def call(path, body):
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{URL}/api/v1{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)

def handle(message):
    print(message["id"], message["payload"], flush=True)
    if "fail" in message["payload"]:
        raise ValueError("the payload asks for a failure")

while True:
    for delivery in call(f"/queues/{QUEUE}/lease", {"max": 10, "wait": "20s", "worker": "python"})["items"]:
        token = delivery["token"]
        try:
            handle(delivery)
            call(f"/deliveries/{token}/ack", {})
        except Exception as error:
            report = {"error_type": type(error).__name__, "message": str(error), "stack": traceback.format_exc()}
            call(f"/deliveries/{token}/fail", report)
