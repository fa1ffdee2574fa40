// The questions to the publisher. The token is kept in sessionStorage: in this tab of this origin alone, port included. A cookie would
// go to every port of the host, and would be sent by the browser whoever asked for it.
const key = "lapse.token";
let token = null;
try { token = sessionStorage.getItem(key); } catch { /* then it lives as long as the page */ }

export class Refused extends Error {
  constructor(status, problem) {
    super((problem && problem.detail) || String(status));
    this.status = status;
    this.code = (problem && problem.code) || "";
  }
}

export const known = () => token !== null;

export function keep(value) {
  token = value;
  try { if (value === null) sessionStorage.removeItem(key); else sessionStorage.setItem(key, value); } catch { /* as above */ }
}

export async function ask(path, parameters, body, signal) {
  const query = parameters ? "?" + new URLSearchParams(parameters) : "";
  const headers = { Authorization: "Bearer " + token };
  const options = { headers, cache: "no-store", credentials: "omit", redirect: "error", signal };
  if (body !== undefined) {
    options.method = "POST";
    options.body = JSON.stringify(body);
    headers["Content-Type"] = "application/json";
  }
  const answer = await fetch("api/" + path + query, options);
  let out = null;
  try { out = await answer.json(); } catch { /* no JSON is no problem that names itself */ }
  if (!answer.ok) throw new Refused(answer.status, out);
  return out;
}
