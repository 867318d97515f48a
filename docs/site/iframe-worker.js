// Search in pages that are opened from a disk, where browsers start no workers: a frame runs the
// worker's script. The name tells MkDocs Material not to load its own from the network.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      frame.contentDocument.open();
      frame.contentDocument.write("<head></head>");
      frame.contentDocument.close();
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) =>
        this.dispatchEvent(new MessageEvent("message", { data }));
      const script = frame.contentDocument.createElement("script");
      script.src = url;
      this.loaded = new Promise((resolve) => { script.onload = resolve; });
      frame.contentDocument.head.append(script);
    }

    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
