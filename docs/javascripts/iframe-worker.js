// Browsers start no workers for a page that is opened from disk: there the theme's search runs in a hidden frame.
// The theme loads this file before its own script. Its offline plugin knows it by the name, and leaves out a web address.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.append(this.frame)
      this.scope = this.frame.contentWindow
      this.scope.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = this.scope.document.createElement("script")
      script.src = url
      this.ready = new Promise(resolve => { script.onload = resolve })
      this.scope.document.body.append(script)
    }

    postMessage(data) {
      this.ready.then(() => this.scope.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
