// Shared by the pages: elements, requests, the token.

// An element with attributes and children. Text is only ever set as text, so no sentence can become markup.
// `on` holds listeners; an attribute that is null or false is left out.
function el(name, attributes, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === "on") {
      for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    } else if (value !== null && value !== false && value !== undefined) {
      node.setAttribute(key, value === true ? "" : value);
    }
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const byId = (id) => document.getElementById(id);

// The token comes in the fragment of the address, which is not sent to the server, and is then removed from it.
const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) {
  sessionStorage.setItem("token", given);
  history.replaceState(null, "", location.pathname);
}

// A request to the server; an error has its message, and its status as `status`.
async function call(path, body) {
  const options = { headers: {} };
  const token = sessionStorage.getItem("token");
  if (token) options.headers.Authorization = `Bearer ${token}`;
  if (body !== undefined) {
    options.method = "POST";
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  const response = await fetch(path, options).catch(() => {
    throw new Error("The server cannot be reached. Start it again, then repeat what you did; nothing is lost.");
  });
  const data = await response.json();
  if (!response.ok) throw Object.assign(new Error(data.error.message), { status: response.status });
  return data;
}

// Show an error; where a token is missing, ask for it and load the page again.
function complain(error) {
  const box = byId("problem");
  box.replaceChildren(el("p", {}, error.message));
  if (error.status === 401) {
    const input = el("input", { type: "password", "aria-label": "Token", autocomplete: "off" });
    const use = () => {
      sessionStorage.setItem("token", input.value.trim());
      location.reload();
    };
    input.addEventListener("keydown", (event) => event.key === "Enter" && use());
    box.append(input, el("button", { type: "button", on: { click: use } }, "Use this token"));
  }
  box.hidden = false;
}

function settled() {
  byId("problem").hidden = true;
}
