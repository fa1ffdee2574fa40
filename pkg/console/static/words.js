// What the page says, in each language. {0}, {1}, … are values; {0:coupon|coupons} is a word beside one, for one and for any other number.
const en = {
  "title": "Lapse console", "skip": "Skip to the figures", "language": "Language", "theme": "Colours", "theme.auto": "As the system", "theme.light": "Light", "theme.dark": "Dark",
  "leave": "Sign out", "login.title": "Sign in", "login.text": "With a token of the API that has the scope read or ops; lapsectl token makes one.", "login.token": "Token", "login.go": "Sign in",
  "login.note": "It stays in this tab, and is gone when the tab is closed.", "login.unknown": "The token is not known.", "login.scope": "The token has neither the scope read nor ops.",
  "login.failed": "That did not work: {0}", "login.ended": "The token is not accepted any more. Sign in again.",
  "healthy": "Healthy", "unhealthy": "Needs attention", "fresh": "As of {0}, every {1}", "stale": "Not renewed since {0}: {1}",
  "attention": "Needs attention", "now": "Now",
  "tile.waiting": "Waiting", "tile.waiting.note": "in the ladder", "tile.due": "Due", "tile.due.note": "to be handled",
  "tile.issued": "Issued", "tile.expired": "Expired", "tile.rate": "{0}/s", "tile.window": "over 15 s",
  "tile.late": "Lateness p50 / p99", "tile.late.note": "{0} in a minute", "tile.late.none": "nothing in the last minute",
  "tile.overdue": "Overdue", "tile.overdue.note": "the oldest by {0}", "none": "none", "tile.outbox": "Outbox", "tile.outbox.note": "the oldest {0}", "tile.planner": "Planner lag",
  "tile.planner.unlimited": "horizon unlimited", "tile.planner.horizon": "horizon {0}", "unknown": "not known", "tile.aside": "Set aside", "tile.aside.note": "messages and outbox rows",
  "look": "Look up", "look.kind": "What to look for", "look.coupon": "Coupon", "look.user": "User", "look.id": "Its id", "look.hint": "id", "look.go": "Look up",
  "look.note": "Whether a coupon can be used at this moment, why not, and all that happened to it.",
  "look.busy": "Looking …", "look.nothing": "There is no coupon {0}.", "look.number": "A coupon's id is a number, and {0} is none. For a user, choose User before it.", "look.bad": "That cannot be looked up: {0}",
  "why.usable": "It can be used now, until {0} ({1}).", "why.usable.never": "It can be used now, and has no end.", "why.minimum": "From {0} on.", "why.scopes": "For {0} alone.",
  "why.not_yet_valid": "It cannot be used yet: it is valid from {0} on ({1}).",
  "why.ended": "It cannot be used: it ended at {0} ({1}). A worker has not settled that yet.", "why.ended.paused": "It cannot be used: it ended at {0} ({1}). That is not settled, since its expiry is paused.",
  "why.expired": "It cannot be used: it expired at {0} ({1}).", "why.expired.early": "It cannot be used: it was settled as expired ({2}); its end was {0} ({1}).",
  "why.locked": "Order {0} holds it until {1} ({2}): no other order can use it before.", "why.used": "It cannot be used again: order {0} used it at {1} ({2}).",
  "why.voided": "It cannot be used: {0} withdrew it at {1}, because: {2}",
  "why.observed": "It cannot be used here: another system owns it, and it is only observed until the cut-over. Ask that system whether it can be used there.",
  "short.usable": "usable", "short.not_yet_valid": "not valid yet", "short.ended": "over", "short.expired": "expired", "short.locked": "held by an order", "short.used": "used", "short.voided": "withdrawn", "short.observed": "another system's",
  "state.unused": "unused", "state.locked": "locked", "state.used": "used", "state.expired": "expired", "state.voided": "voided",
  "fact.state": "State", "fact.stored": "stored as {0}", "fact.user": "User", "fact.template": "Template", "fact.value": "Worth", "fact.granted": "Granted", "fact.valid": "Valid from", "fact.ends": "Ends", "fact.never": "never",
  "fact.due": "Settled from", "fact.order": "Order", "fact.lock": "Locked until", "fact.batch": "Batch", "fact.grant": "Grant key", "fact.outbox": "Outbox", "fact.outbox.n": "{0} {0:message|messages} on the way", "fact.beyond": "Trigger", "fact.beyond.text": "sent by the planner in time",
  "fact.stopped": "issues no more", "fact.archived": "archived", "fact.observed": "observed", "revision": "revision {0}",
  "timeline": "What happened", "step.grant": "granted", "step.renewed": "lock renewed", "step.moved": "end moved from {0} to {1}", "step.locked": "locked until {0}", "step.released": "released", "step.refunded": "refunded",
  "step.used": "used", "step.expired": "expired", "step.voided": "withdrawn", "step.reinstated": "given back", "step.order": "order {0}", "step.by": "by {0}", "cause": "by {0}",
  "cause.grant": "a grant", "cause.ladder": "its trigger", "cause.sweep": "the sweep", "cause.lazy": "a reader", "cause.lock": "the end of its lock", "cause.order": "an order", "cause.refund": "a refund", "cause.admin": "an operator", "cause.import": "an import",
  "user.sum": "{0} has {1} usable {1:coupon|coupons}, of which {2} {2:ends|end} within three days; worth {3}.", "user.none": "{0} has no coupons.", "user.unusable": "{0} has no coupon that can be used now.", "user.next": "The next one ends at {0} ({1}).", "user.more": "More",
  "user.coupons": "Coupons", "col.coupon": "Coupon", "col.state": "State", "col.why": "Now", "col.ends": "Ends", "col.value": "Worth", "col.template": "Template",
  "forecast": "What expires when", "forecast.span": "Time span", "span.60m": "60 minutes", "span.24h": "24 hours", "span.30d": "30 days",
  "forecast.reading": "Being counted …", "forecast.failed": "Could not be counted: {0}", "forecast.caption": "Unused and locked coupons by their due instant, counted at {0}. {1}", "forecast.partial": "Numbers with ≥ were counted up to a bound.", "forecast.utc": "Days are UTC days.", "forecast.empty": "Nothing expires in {1}, counted at {0}.", "worth.percent": "{0} off", "worth.cap": "{0} at most",
  "forecast.total": "Expire", "forecast.locked": "Locked", "forecast.locked.note": "come when their lock ends, if at all", "forecast.value": "Value at risk", "forecast.drain": "Expected drain", "forecast.drain.note": "at {0}/s ({1}, {2} {2:expirer|expirers})", "forecast.drain.unknown": "no expirer has run yet",
  "forecast.peak": "Fullest second", "forecast.peak.note": "{0}; the last one {1} late", "source.measured": "measured", "source.configured": "configured", "source.unknown": "not known",
  "midnight": "At midnight ({0}, {1})", "midnight.n": "{0} {0:coupon expires|coupons expire}", "midnight.none": "Nothing expires", "midnight.note": "worth {0}; all done {1} later", "midnight.late": "the last one up to {0} late", "midnight.locked": "{0} of them locked",
  "col.from": "From", "col.unused": "Unused", "col.locked": "Locked", "col.drain": "Takes", "col.peak": "Fullest second", "col.not": "not counted",
  "table.show": "Show as a table", "table.hide": "Hide the table", "read.bucket": "{0}: {1} {1:coupon|coupons}, {2}",
  "rates": "Issued and expired, a second", "queues": "Waiting and due", "series.issued": "issued", "series.expired": "expired", "series.waiting": "waiting", "series.due": "due", "series.unused": "unused", "series.locked": "locked", "chart.rates": "Chart: {0} issued and {1} expired a second at last.", "chart.queues": "Chart: {0} waiting and {1} due at last.", "chart.forecast": "Chart of what expires: {0} {0:coupon|coupons} in {1}.", "col.time": "Time", "col.p99": "Lateness p99",
  "templates": "Coupons by template", "col.granted": "Granted", "col.used": "Used", "col.expired": "Expired", "col.voided": "Voided", "templates.none": "There is no template yet.", "templates.note": "From the statistics, which follow by seconds; archived coupons count. {0}", "templates.more": "The newest {0} are shown.", "templates.stopped": "stopped",
  "pipeline": "Outbox, planner, fleet", "pipe.trigger": "Outbox, triggers", "pipe.event": "Outbox, events", "pipe.parked": "Outbox, set aside", "pipe.rows": "{0}", "pipe.oldest": "{0}, the oldest {1}", "pipe.planner": "Planner", "pipe.planner.text": "lag {0}", "pipe.remind": "Reminders {0}", "pipe.locks": "Locks", "pipe.locks.text": "{0}, run out {1}", "pipe.sweep": "Sweep", "pipe.sweep.text": "recovered {0}, passed over {1}", "mode.full": "at full pace", "mode.reduced": "at a reduced pace", "pipe.clock": "Clocks", "pipe.clock.text": "worst offset {0}, stopped {1}", "pipe.drain": "Drain rate", "pipe.bottleneck": "Bottleneck", "pipe.mechanism": "Delay by", "pipe.broker": "Broker", "pipe.broker.ok": "reachable", "pipe.broker.away": "cannot be reached", "pipe.stages": "{0} times as slow as when calm",
  "fleet": "Processes", "fleet.none": "No worker runs.", "col.process": "Process", "col.role": "Role", "col.version": "Version", "col.heard": "Heard", "heard.now": "alive", "heard.silent": "silent for {0}",
  "paused": "Paused", "paused.none": "Nothing is paused.", "paused.what": "What", "paused.since": "Since", "paused.by": "By", "paused.why": "Why", "pause.expiry": "expiry", "pause.notices": "notices", "pause.issuance": "issuance", "scope.": "all", "scope.template": "template {0}", "scope.batch": "batch {0}", "scope.channel": "channel {0}", "paused.note": "It goes on by:",
  "parked": "Set aside", "parked.look": "Look through it", "parked.again": "Look again", "parked.sum": "Messages that could not be handled: {0}. Without a route: {1}. Outbox rows that the broker refused: {2}.", "parked.zero": "Nothing was set aside.", "parked.ops": "To look through it, sign in with the scope ops.",
  "parked.found": "{0} found, of {1} looked through at {2}.", "parked.more": "There may be more: lapsectl parked list.", "col.pick": "Choose", "col.ref": "Ref", "col.place": "Place", "col.origin": "From", "col.reason": "Reason", "col.message": "Message", "col.n": "Number", "place.parked": "parked", "place.unroutable": "no route", "place.outbox": "outbox", "parked.counts": "By reason", "parked.items": "One by one", "parked.whole": "A whole message is shown by lapsectl parked show, with its ref.",
  "parked.pick": "Choose {0}", "parked.all": "Choose all", "parked.replay": "Replay {0} chosen …", "parked.done": "{0} of {1} {1:was|were} sent to where they came from.", "parked.stay": "Some stay: {0}", "parked.failed": "It could not be replayed: {0}", "parked.wrong": "It could not be looked through: {0}",
  "replay": "Replay", "replay.text": "Chosen: {0}. They go back to where they came from, and are handled once more. That is safe: what was done already is recognised, and is not done twice; what still cannot be handled is set aside again. So mend the cause first.", "replay.actor": "Your name", "replay.reason": "Why: kept in the operators' log", "replay.go": "Replay", "replay.busy": "Replaying …", "cancel": "Cancel",
  "footer": "Times are of your clock's zone ({0}); states are told by the database's clock.", "footer.shop": "Times are of the zone {0}, set by console.zone; states are told by the database's clock.", "in": "in {0}", "ago": "{0} ago", "unit.d": "d", "unit.h": "h", "unit.min": "min", "unit.s": "s",
};

const zh = {
  "title": "Lapse 控制台", "skip": "跳到数据", "language": "语言", "theme": "配色", "theme.auto": "跟随系统", "theme.light": "浅色", "theme.dark": "深色",
  "leave": "退出", "login.title": "登录", "login.text": "使用具有 read 或 ops 权限的 API 令牌（由 lapsectl token 生成）。", "login.token": "令牌", "login.go": "登录",
  "login.note": "令牌只保存在本标签页，关闭标签页后即清除。", "login.unknown": "令牌无效。", "login.scope": "该令牌没有 read 或 ops 权限。",
  "login.failed": "登录失败：{0}", "login.ended": "令牌已失效，请重新登录。",
  "healthy": "正常", "unhealthy": "需要关注", "fresh": "{0} 的数据，每 {1} 更新", "stale": "自 {0} 起未更新：{1}",
  "attention": "需要关注", "now": "当前",
  "tile.waiting": "等待中", "tile.waiting.note": "触发消息", "tile.due": "已到期待处理", "tile.due.note": "触发消息",
  "tile.issued": "发放", "tile.expired": "过期", "tile.rate": "{0}/秒", "tile.window": "最近 15 秒",
  "tile.late": "延迟 p50 / p99", "tile.late.note": "一分钟内 {0} 张", "tile.late.none": "最近一分钟没有过期",
  "tile.overdue": "逾期未处理", "tile.overdue.note": "最久 {0}", "none": "无", "tile.outbox": "发件箱", "tile.outbox.note": "最旧 {0}", "tile.planner": "计划器滞后",
  "tile.planner.unlimited": "不限视野", "tile.planner.horizon": "视野 {0}", "unknown": "未知", "tile.aside": "搁置", "tile.aside.note": "消息与发件箱行",
  "look": "查询", "look.kind": "查询对象", "look.coupon": "优惠券", "look.user": "用户", "look.id": "编号", "look.hint": "编号", "look.go": "查询",
  "look.note": "此刻能否使用、为什么不能用，以及它经历的一切。",
  "look.busy": "查询中…", "look.nothing": "没有编号为 {0} 的优惠券。", "look.number": "优惠券编号是数字，{0} 不是。查询用户请先选择“用户”。", "look.bad": "无法查询：{0}",
  "why.usable": "现在可以使用，有效期至 {0}（{1}）。", "why.usable.never": "现在可以使用，永不过期。", "why.minimum": "满 {0} 可用。", "why.scopes": "仅限：{0}。",
  "why.not_yet_valid": "还不能使用：{0} 起生效（{1}）。",
  "why.ended": "不能使用：已于 {0} 结束（{1}），系统尚未结算。", "why.ended.paused": "不能使用：已于 {0} 结束（{1}）；过期处理被暂停，因此尚未结算。",
  "why.expired": "不能使用：已于 {0} 过期（{1}）。", "why.expired.early": "不能使用：已按过期结算（{2}）；原结束时间为 {0}（{1}）。",
  "why.locked": "订单 {0} 锁定至 {1}（{2}），在此之前其他订单不能使用。", "why.used": "不能再次使用：订单 {0} 已于 {1} 使用（{2}）。",
  "why.voided": "不能使用：{0} 于 {1} 作废，原因：{2}",
  "why.observed": "在这里不能使用：它仍属于另一个系统，切换之前这里只做观察。能否在那里使用，请查询那个系统。",
  "short.usable": "可用", "short.not_yet_valid": "未生效", "short.ended": "已结束", "short.expired": "已过期", "short.locked": "被订单锁定", "short.used": "已使用", "short.voided": "已作废", "short.observed": "属于另一系统",
  "state.unused": "未使用", "state.locked": "已锁定", "state.used": "已使用", "state.expired": "已过期", "state.voided": "已作废",
  "fact.state": "状态", "fact.stored": "库中为 {0}", "fact.user": "用户", "fact.template": "模板", "fact.value": "面值", "fact.granted": "发放时间", "fact.valid": "生效时间", "fact.ends": "结束时间", "fact.never": "永不",
  "fact.due": "开始结算", "fact.order": "订单", "fact.lock": "锁定至", "fact.batch": "批次", "fact.grant": "发放键", "fact.outbox": "发件箱", "fact.outbox.n": "{0} 条消息发送中", "fact.beyond": "触发消息", "fact.beyond.text": "由计划器按时发送",
  "fact.stopped": "已停止发放", "fact.archived": "已归档", "fact.observed": "仅观察", "revision": "第 {0} 版",
  "timeline": "经历", "step.grant": "发放", "step.renewed": "续锁", "step.moved": "结束时间由 {0} 改为 {1}", "step.locked": "锁定至 {0}", "step.released": "释放", "step.refunded": "退还",
  "step.used": "使用", "step.expired": "过期", "step.voided": "作废", "step.reinstated": "恢复", "step.order": "订单 {0}", "step.by": "操作者 {0}", "cause": "由{0}",
  "cause.grant": "发放", "cause.ladder": "到期触发", "cause.sweep": "扫描", "cause.lazy": "读取触发", "cause.lock": "锁定结束", "cause.order": "订单", "cause.refund": "退款", "cause.admin": "运营人员", "cause.import": "导入",
  "user.sum": "{0} 有 {1} 张可用优惠券，其中 {2} 张三天内到期；共值 {3}。", "user.none": "{0} 没有优惠券。", "user.unusable": "{0} 没有现在可用的优惠券。", "user.next": "最近一张于 {0} 到期（{1}）。", "user.more": "更多",
  "user.coupons": "优惠券", "col.coupon": "优惠券", "col.state": "状态", "col.why": "此刻", "col.ends": "结束时间", "col.value": "面值", "col.template": "模板",
  "forecast": "何时过期", "forecast.span": "时间范围", "span.60m": "60 分钟", "span.24h": "24 小时", "span.30d": "30 天",
  "forecast.reading": "统计中…", "forecast.failed": "无法统计：{0}", "forecast.caption": "按到期时刻统计未使用与已锁定的优惠券，统计于 {0}。{1}", "forecast.partial": "带 ≥ 的数字只统计到上限。", "forecast.utc": "按 UTC 日划分。", "forecast.empty": "{1}内没有优惠券过期，统计于 {0}。", "worth.percent": "减 {0}", "worth.cap": "最多 {0}",
  "forecast.total": "将过期", "forecast.locked": "已锁定", "forecast.locked.note": "锁定结束后才可能过期", "forecast.value": "涉及金额", "forecast.drain": "预计处理时间", "forecast.drain.note": "每秒 {0} 张（{1}，{2} 个 expirer）", "forecast.drain.unknown": "尚无 expirer 运行过",
  "forecast.peak": "最满的一秒", "forecast.peak.note": "{0}；最后一张延迟 {1}", "source.measured": "实测", "source.configured": "配置值", "source.unknown": "未知",
  "midnight": "今晚零点（{0}，{1}）", "midnight.n": "{0} 张优惠券过期", "midnight.none": "没有优惠券过期", "midnight.note": "共值 {0}；{1}后全部处理完", "midnight.late": "最后一张最多延迟 {0}", "midnight.locked": "其中 {0} 张被锁定",
  "col.from": "起", "col.unused": "未使用", "col.locked": "已锁定", "col.drain": "处理时间", "col.peak": "最满的一秒", "col.not": "未统计",
  "table.show": "以表格显示", "table.hide": "隐藏表格", "read.bucket": "{0}：{1} 张，{2}",
  "rates": "每秒发放与过期", "queues": "等待与到期", "series.issued": "发放", "series.expired": "过期", "series.waiting": "等待", "series.due": "到期", "series.unused": "未使用", "series.locked": "已锁定", "chart.rates": "图表：最近每秒发放 {0} 张、过期 {1} 张。", "chart.queues": "图表：最近等待 {0} 条、到期 {1} 条。", "chart.forecast": "过期图表：{1}内 {0} 张。", "col.time": "时间", "col.p99": "延迟 p99",
  "templates": "各模板的优惠券", "col.granted": "已发放", "col.used": "已使用", "col.expired": "已过期", "col.voided": "已作废", "templates.none": "还没有模板。", "templates.note": "取自统计数据，滞后数秒；含已归档的优惠券。{0}", "templates.more": "只显示最新的 {0} 个。", "templates.stopped": "已停止",
  "pipeline": "发件箱、计划器、进程", "pipe.trigger": "发件箱·触发", "pipe.event": "发件箱·事件", "pipe.parked": "发件箱·搁置", "pipe.rows": "{0} 行", "pipe.oldest": "{0} 行，最旧 {1}", "pipe.planner": "计划器", "pipe.planner.text": "滞后 {0}", "pipe.remind": "提醒 {0}", "pipe.locks": "锁定", "pipe.locks.text": "{0}，已超时 {1}", "pipe.sweep": "扫描", "pipe.sweep.text": "补救 {0}，跳过 {1}", "mode.full": "全速", "mode.reduced": "降速", "pipe.clock": "时钟", "pipe.clock.text": "最大偏差 {0}，停摆 {1}", "pipe.drain": "处理速率", "pipe.bottleneck": "瓶颈", "pipe.mechanism": "延迟机制", "pipe.broker": "消息队列", "pipe.broker.ok": "可达", "pipe.broker.away": "不可达", "pipe.stages": "比平时慢 {0} 倍",
  "fleet": "进程", "fleet.none": "没有进程在运行。", "col.process": "进程", "col.role": "角色", "col.version": "版本", "col.heard": "心跳", "heard.now": "在线", "heard.silent": "已静默 {0}",
  "paused": "暂停", "paused.none": "没有暂停项。", "paused.what": "内容", "paused.since": "自", "paused.by": "操作者", "paused.why": "原因", "pause.expiry": "过期处理", "pause.notices": "通知", "pause.issuance": "发放", "scope.": "全部", "scope.template": "模板 {0}", "scope.batch": "批次 {0}", "scope.channel": "渠道 {0}", "paused.note": "恢复命令：",
  "parked": "搁置的消息", "parked.look": "查看", "parked.again": "重新查看", "parked.sum": "{0} 条消息无法处理，{1} 条没有路由，{2} 行发件箱被拒绝。", "parked.zero": "没有搁置的消息。", "parked.ops": "查看需要 ops 权限的令牌。",
  "parked.found": "共找到 {0} 条，{2} 检查了 {1} 条。", "parked.more": "可能还有更多：lapsectl parked list。", "col.pick": "选择", "col.ref": "标识", "col.place": "位置", "col.origin": "来自", "col.reason": "原因", "col.message": "消息", "col.n": "数量", "place.parked": "搁置", "place.unroutable": "无路由", "place.outbox": "发件箱", "parked.counts": "按原因", "parked.items": "逐条", "parked.whole": "用 lapsectl parked show 加标识可查看整条消息。",
  "parked.pick": "选择 {0}", "parked.all": "全选", "parked.replay": "重放所选 {0} 条…", "parked.done": "{1} 条中的 {0} 条已送回原处。", "parked.stay": "部分保留：{0}", "parked.failed": "无法重放：{0}", "parked.wrong": "无法查看：{0}",
  "replay": "重放", "replay.text": "将把 {0} 条送回原处重新处理。这是安全的：已处理过的会被识别，不会重复处理；仍无法处理的会再次搁置。请先排除原因。", "replay.actor": "您的姓名", "replay.reason": "原因（记入操作日志）", "replay.go": "重放", "replay.busy": "重放中…", "cancel": "取消",
  "footer": "时间按您所在时区（{0}）显示；状态以数据库时钟为准。", "footer.shop": "时间按 console.zone 设定的时区（{0}）显示；状态以数据库时钟为准。", "in": "{0}后", "ago": "{0}前", "unit.d": "天", "unit.h": "小时", "unit.min": "分", "unit.s": "秒",
  // What needs attention: the publisher says it in English, with a code and values.
  "note.clock_stopped": "{1} 个进程中有 {0} 个因数据库时钟跳变而停止过期处理（lapsectl clock status）", "note.paused": "{0} 自 {1} 起被 {2} 暂停：{3}（lapsectl resume）",
  "note.broker_away": "消息队列不可达：{0}", "note.queues_missing": "消息队列缺少 {0} 个队列（lapsectl topology verify）", "note.bottleneck": "瓶颈在 {0}：{1}",
  "note.overdue": "{0} 张优惠券逾期未处理，最久 {1}", "note.late": "过期偏晚：99% 在 {0} 内", "note.swept": "扫描补救了 {0} 张 {1} 没有送达的优惠券", "note.sweep_skipped": "扫描跳过了 {0} 行无法变更的数据（见 expirer 日志）",
  "note.outbox_old": "发件箱中最旧的 {0} 已等待 {1}", "note.locks_run_out": "{0} 个锁定已超时未释放，最久 {1}", "note.planner_behind": "计划器滞后 {0}", "note.horizon_differs": "本配置为不限视野，但计划器使用 {0}",
  "note.reminders_behind": "计划器在 {1} 的提醒上滞后 {0}", "note.no_worker": "没有进程在运行", "note.role_missing": "没有 {0} 在运行", "note.parked": "搁置了 {0} 条消息", "note.unroutable": "{0} 条消息没有路由（lapsectl topology verify）",
  "note.outbox_parked": "搁置了 {0} 行发件箱", "note.limit": "超出上限：{0}",
};

const words = { "en": en, "zh-CN": zh };
let tongue = document.documentElement.lang in words ? document.documentElement.lang : "en";

export const language = () => tongue;

export function speak(next) {
  tongue = next in words ? next : "en";
  document.documentElement.lang = tongue;
  document.title = t("title");
  for (const node of document.querySelectorAll("[data-t]")) node.textContent = t(node.dataset.t);
  for (const node of document.querySelectorAll("[data-placeholder]")) node.placeholder = t(node.dataset.placeholder);
}

export function t(key, ...values) {
  const text = words[tongue][key] ?? en[key] ?? key;
  return text.replace(/\{(\d)(?::([^|}]*)\|([^}]*))?\}/g, (_, i, one, many) => (one === undefined ? String(values[i] ?? "") : String(values[i]) === "1" ? one : many));
}

export const has = (key) => key in words[tongue];
