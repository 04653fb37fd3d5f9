"""Word lists of the training corpus, each roughly ordered from frequent to rare.

Only single words and names of formats and tools: facts, no one's prose.
"""

def _w(s):
    return s.split()

NOUNS = _w("""
file function test error code time way value line name change data type problem case user list request result example part work thing
message number system state project option point version command issue question answer path string key object set class method process
service server client database table row column field record entry index query page view form button link image text word letter
document report note section chapter title header body footer word sentence paragraph language library package module crate component
feature task step plan goal idea reason fact place world people person man woman child team group company customer member manager
developer engineer owner author reader account order product price cost money market business industry store shop payment invoice
budget sale contract policy law rule right government country city street house home room door window car road school student teacher
course class book paper story news history science research study paper theory model experiment sample measure rate level degree
amount size length width height weight distance area space volume speed power energy heat light water air fire earth sun moon sky
day week month year hour minute second morning evening night today date moment period season summer winter past future beginning end
life death health body head hand eye face heart mind blood food drink bread meat fruit tree plant flower animal dog cat horse bird fish
family mother father parent brother sister friend neighbor couple marriage party game play sport player match score music song film
picture art color sound voice word call phone mail letter email address internet network connection site website web browser computer
machine device tool engine part piece bit byte block chunk buffer memory cache disk drive storage backup copy snapshot checkpoint
session token context prompt response agent assistant conversation history summary branch commit merge conflict diff patch release
build pipeline job worker queue thread lock mutex channel stream event handler callback listener hook trigger timer schedule timeout
retry limit quota range interval window bound threshold budget balance average maximum minimum total sum count difference ratio
percentage fraction decimal integer float boolean array slice vector map dictionary tuple struct enum trait interface implementation
definition declaration statement expression variable constant parameter argument return property attribute element node edge graph
leaf root parent child sibling ancestor schema migration transaction rollback constraint relation reference pointer address offset
header payload format encoding parser lexer compiler interpreter runtime environment configuration setting default flag switch
argument directory folder tree workspace repository checkout remote origin upstream tag label category topic subject domain host port
protocol endpoint route router controller middleware layer layout template style theme color font icon menu sidebar dialog panel tab
card grid widget screen cursor mouse keyboard input output log trace stack frame exception warning failure bug fix workaround
regression crash panic leak race deadlock bottleneck latency throughput performance benchmark profile metric counter gauge histogram
dashboard alert monitor incident outage recovery security permission role access credential password secret certificate signature
hash checksum digest cipher encryption key vault session cookie header origin proxy gateway firewall balancer cluster replica shard
partition region zone instance container image volume mount pod deployment namespace registry artifact bundle asset dependency
lockfile manifest license changelog readme documentation tutorial guide reference manual comment annotation review feedback approval
suggestion improvement requirement specification design architecture pattern approach strategy solution alternative decision
tradeoff assumption risk benefit advantage disadvantage effort estimate deadline milestone sprint backlog ticket story epic priority
status progress blocker dependency outcome impact effect cause condition situation circumstance behavior response action activity
operation procedure sequence order iteration loop cycle phase stage transition state machine automaton signal noise pattern match
expression regex wildcard prefix suffix substring character symbol digit whitespace newline tab quote bracket brace comma colon
semicolon slash backslash dash underscore dot star hash percent dollar ampersand pipe arrow operator operand precedence scope closure
lifetime ownership borrow move clone iterator generator coroutine future promise executor runtime scheduler allocator garbage
collector heap stack register instruction assembly binary executable process kernel driver firmware hardware sensor robot vehicle
flight airport hotel ticket trip journey travel tourist map location region border island mountain river lake ocean sea beach weather
rain snow wind storm temperature climate forecast farm field crop forest garden kitchen table chair bed wall floor ceiling roof
furniture clothes shirt shoe hat coat bag box bottle cup glass plate knife spoon recipe ingredient meal breakfast lunch dinner coffee
tea sugar salt oil butter cheese egg milk rice chicken soup doctor nurse patient hospital disease symptom treatment medicine drug
dose exam lawyer court judge trial evidence crime police prison victim witness war army soldier weapon battle peace leader president
minister election vote campaign citizen freedom justice duty tax bank loan interest debt credit stock share profit loss growth income
salary job career skill experience knowledge training education degree university college library lesson grade exam exercise
training practice habit attitude opinion belief religion church culture tradition custom event ceremony festival holiday weekend
birthday gift surprise dream hope fear anger joy love hate pain pleasure taste smell touch sight attention interest curiosity mistake
lie truth secret promise threat danger safety accident damage injury rescue help support advice warning permission chance luck
success failure victory defeat competition prize reward punishment challenge obstacle opportunity choice preference desire need
purpose meaning definition description explanation argument discussion debate agreement disagreement compromise negotiation deal
""")

VERBS = _w("""
be have do make use get add see need run check change work look find want take give know think try call set show read write update
return fix test create remove keep start stop move pass help turn open close save load build send ask tell let put come go say mean
seem happen follow include allow handle support provide contain require expect expose replace rename refactor extend implement define
declare import export parse format render print log trace debug compile install deploy release publish commit push pull merge rebase
revert restore resume pause retry fail crash hang block wait sleep wake spawn kill exit return yield raise throw catch ignore skip
continue break loop iterate filter map reduce sort group join split trim match search replace insert delete append drop select fetch
store cache index query scan compare verify validate confirm ensure assert prove measure count estimate calculate compute convert
encode decode compress encrypt sign hash copy clone mount attach detach connect disconnect listen bind accept reject close flush
allocate free lock unlock acquire release share own borrow assign bind wrap unwrap nest flatten expand collapse resize scroll click
drag select type enter submit cancel approve deny review suggest recommend propose discuss explain describe document clarify
summarize simplify improve optimize reduce increase avoid prevent protect secure limit restrict enforce guarantee promise decide
choose prefer plan schedule organize manage own lead learn teach study understand remember forget believe hope feel hear watch
notice recognize discover explore investigate examine inspect analyze identify detect diagnose reproduce isolate resolve solve settle
complete finish reach achieve deliver receive collect gather combine separate distribute balance scale grow shrink rise fall drop
lift carry bring hold hang pull throw catch hit cut break repair paint draw cook eat drink buy sell pay spend earn lose win play
sing dance walk drive fly travel visit stay live die born marry meet greet invite join leave arrive return depart wait rest wash
clean dress wear fit match cover hide reveal appear disappear exist remain become belong depend consist differ matter affect cause
influence force press touch shake mix pour fill empty burn heat cool freeze melt dry wet plant harvest feed hunt fight attack defend
escape rescue warn threaten promise apologize forgive thank praise blame criticize complain argue agree disagree refuse admit claim
announce report mention state quote translate interpret represent symbolize imagine invent design develop produce manufacture
""")

ADJS = _w("""
new same other first last next good right current different available possible able existing empty missing wrong old full large small
simple single multiple specific local remote main default custom internal external public private static dynamic global unique valid
invalid correct incorrect relevant important necessary optional required clear clean safe unsafe stable unstable fast slow short long
high low big little early late recent previous final initial original actual real virtual physical logical atomic durable concurrent
parallel sequential synchronous asynchronous blocking lazy eager strict loose tight open closed active inactive idle busy free
pending running failed successful complete incomplete partial whole entire total average typical common rare usual normal special
general particular certain sure likely unlikely obvious subtle hard easy difficult complex complicated trivial minor major critical
severe serious urgent immediate quick careful explicit implicit direct indirect absolute relative nested flat deep shallow wide narrow
thin thick heavy light strong weak cheap expensive useful useless helpful harmful dangerous healthy sick dead alive young ancient
modern traditional popular famous unknown known familiar strange foreign native national international political social economic
financial commercial legal medical scientific technical mechanical electric digital automatic manual human natural artificial
chemical biological mathematical statistical random deterministic constant variable mutable immutable readable writable executable
portable compatible consistent inconsistent redundant duplicate similar identical equal opposite separate independent dependent
related responsible aware ready willing happy sad angry afraid proud tired hungry thirsty warm cold hot cool dry wet bright dark
loud quiet sweet bitter sour fresh clean dirty beautiful ugly nice kind polite rude honest brave clever smart wise stupid lazy
patient curious creative elegant robust resilient scalable maintainable reliable flexible efficient idiomatic verbose concise
""")

ADVS = _w("""
not also only now then just already still even again here there first always never often usually sometimes currently instead however
therefore otherwise really very quite too so well better best more most less least much almost nearly exactly correctly properly
cleanly safely directly automatically manually explicitly simply clearly quickly slowly carefully finally eventually immediately
recently previously later soon early together separately once twice twice above below inside outside everywhere anywhere nowhere
actually probably possibly perhaps maybe certainly definitely likely apparently unfortunately fortunately hopefully basically
essentially mostly mainly partly completely entirely fully silently concurrently sequentially asynchronously locally remotely
""")

# Words that agents see in code and configuration.
IDENT = _w("""
user id name data item value key list get set create update delete find load save read write open close init start stop run handle
process parse format render build make new add remove insert append push pop clear reset validate check verify is has can should to
from with by for on in all any first last next prev current old total max min count size length index offset limit page cursor
request response client server config options params args result error err message msg text content body header path url uri host
port file dir folder root node tree parent child children map cache store db database table row column query session token auth
password secret access refresh login logout account profile role permission group member team org project task job worker queue event
listener callback handler hook timer timeout retry delay interval schedule date time timestamp created updated deleted at status
state kind type version hash digest checksum signature entry record log trace level logger metrics counter stats report summary
snapshot checkpoint timeline branch message history context prompt model agent tool call output input stream buffer chunk block
reader writer encoder decoder codec serializer schema field attr property component view controller service repository manager
factory provider adapter wrapper helper util utils common shared core base abstract default custom test mock stub fixture sample demo
order product price cart payment invoice customer address email phone image icon button form modal table grid layout theme style
route router middleware api endpoint socket channel connection pool lock mutex guard thread future task runtime executor engine
parser lexer scanner token ast visitor compiler emitter symbol scope env var flag bit mask byte word char string number int float
bool array vec slice iter map set graph edge vertex weight score rank sort filter reduce merge split join left right top bottom
width height depth color point rect line shape vector matrix angle speed position
""")

DIRS = _w("""
src lib tests test docs doc bin app api core utils common internal pkg cmd config scripts examples crates packages components pages
hooks services models views controllers routes middleware handlers storage store db migrations schema public static assets styles
templates fixtures e2e integration unit bench benches tools build dist target node_modules vendor include server client web ui
frontend backend shared types helpers plugins modules features auth users orders session sessions agent agents engine runtime codec
format parser network http cli data logs tmp cache .github workflows .config home opt usr var etc local share
""")

STEMS = _w("""
main index lib mod utils helpers config settings types errors error app server client router routes handler handlers middleware auth
user users session sessions store storage database db schema models model queries migrations cache queue worker scheduler parser lexer
encoder decoder codec format logger logging metrics tests test_utils conftest setup README CHANGELOG LICENSE CONTRIBUTING Makefile
Dockerfile package tsconfig Cargo pyproject requirements docker-compose deployment values backup restore checkpoint snapshot timeline
entry payload message messages conversation history summary agent tools prompts context memory state plan graph runner executor events
http api rest grpc websocket stream buffer reader writer file_utils string_utils date_utils validation serializers views urls admin
forms signals tasks permissions login signup dashboard profile billing invoice payments orders cart checkout product catalog search
""")

EXT = _w("rs py ts tsx js json md toml yaml yml go java c h cpp sh sql html css txt lock log csv proto rb php kt swift svg png env")

TOOLS = _w("""
Bash Read Edit Write Grep Glob Task WebFetch WebSearch TodoWrite MultiEdit LS NotebookEdit AskUserQuestion bash read_file write_file
edit_file list_directory search_files execute_command run_tests str_replace_based_edit_tool get_weather search web_search fetch_url
query_database send_email create_issue list_issues get_user update_order create_ticket python apply_patch shell update_plan
checkpoint_save checkpoint_load checkpoint_list resume_session inspect_checkpoint mcp__github__create_pull_request mcp__fs__read
""")

MODELS = _w("claude-opus-4-1 claude-sonnet-4-5 claude-haiku-4-5-20251001 claude-opus-4-5 gpt-4o gpt-5 gpt-5-codex gpt-4.1-mini o3 o4-mini gemini-2.5-pro")
FIRST = _w("""anna ben clara david emma felix grace henry ivan julia karl lena maria nora oscar paul rosa sam tom vera alex chris dana
kim lee robin sasha jordan taylor morgan jan eva max leo mia noah olivia liam amir fatima chen wei yuki priya raj omar diego lucia""")
FOREIGN = _w("""
der die das und nicht ist ein eine mit für auf werden können über müssen Datei Fehler prüfen ändern größer schließen Übersicht bitte
le la les des est une pour dans avec été être fichier erreur créer données requête déjà après où très français ça
el los una para con por está más también función archivo configuración año qué cómo según sesión página
не на что это как файл ошибка данные проверить можно если для
文件 错误 用户 数据 测试 函数 请 我们 可以 这个 エラー ファイル です ます する して ください
não você está função usuário dados também então já
""")

# Words that the sentence templates use little or not at all; they go into the dictionary's word list.
EXTRA = _w("""
which would about their there other these could should because through between another without before after being where while those
might since until whether within against although however therefore already together something anything everything nothing someone
including following according above below under during around across along among toward upon despite except unless whose whom itself
themselves yourself himself usually probably perhaps actually really simply generally specifically particularly especially currently
automatically explicitly immediately additional additionally alternative appropriate arbitrary available beginning behavior associated
application applications administrator algorithm alignment allocation analysis approximately assignment attempt authentication
authorization background backward bandwidth basic basically beyond boundary breaking broken built-in calculation capability capacity
certain characters characteristics combination comparison compatibility compilation completion compression concerning concurrency
conditions conditional configuration configured connections consecutive consider consideration considered consistency containing
contains contents continuous control conversion converted corresponding create created creating creation current customers daemon
debugging decimal declared dedicated default defaults defined defining definitions delimiter depending depends deprecated described
descriptor destination details detection determine determined developers development diagnostic different directly directories
directory disabled display displayed distributed distribution duplicate duration dynamically effective effectively efficient either
elements eliminate embedded enable enabled enables encountered encrypted entries environment equivalent especially established
evaluation evaluated every exactly examples exceptions exclusive execute executed executing execution existence exists expected
expensive experience experimental expressions extension extensions external extract facilities failure features filename filesystem
flexible followed following foreground formatted formatting forward framework frequently functionality functions generate generated
generates generating generation generic getting given graphics greater group groups guarantee handle handled handling happens hardware
hierarchy identical identifier identifiers ignored immediate implementation implementations implemented implements important improve
included includes increase independent indicate indicated indicates indicating individual information inherited initialize
initialized initialization input insert inserted inside installation installed instances instead instruction instructions integers
integration interactive interfaces internally internet interpreted invalid invocation invoked keyword keywords large larger latest
leading length libraries lightweight limitations limited linked literal loading locale located location logging longer lookup machine
maintain maintained maintenance making management mapping matching maximum measurement mechanism memory messages metadata methods
minimum missing modification modified modify modules multiple mutable namespace necessary negative nested network networks normal
normally notation notification null number numbers numeric object objects occurred occurs operating operations optional options
ordinary organization original otherwise output outputs overflow override overview package packages parallel parameters parent parsed
parsing partial particular passed passing password patterns perform performance performed performs period permissions permitted
persistent placed platform platforms please plugin pointer policy positive possible potential potentially precision preferred presence
present preserve prevent previous previously primary printed priority privileges procedure processed processes processing produce
produced program programming programs project prompted properly properties provide provided provides providing purpose quickly quoted
random rather reached readable reading received recognized recommended recursive recursively reduce refer reference references regular
related relative release released remaining remember removed removing repeat replaced replacement report reported representation
represented representing represents request requests required requirements requires reserved resolution resolved resource resources
respective respectively response restricted resulting results retrieve return returned returning returns running runtime safely sample
scheduled script scripts search searching second section sections security select selected selection semantics separate separated
separator sequence sequences server servers service services session sessions settings several shared should shown signal signature
significant similar simple single skipped software sometimes source special specification specified specifies specify specifying
standard started starting starts state statement statements static statistics status storage stored strategy string strings structure
structures style subsequent success successful successfully suffix suitable supplied support supported supporting supports suppress
switch symbol symbolic symbols syntax system systems target technique technology template temporary terminal terminate terminated
termination thereby things thread threads three timestamp together toolkit traceback traditional trailing transaction transfer
transform transformation transparent treated trigger truncated typically unchanged undefined underlying understand unexpected unicode
universal unknown unlike unnecessary unsigned unspecified unsupported updated updates upgrade usage useful username users using utilities
utility validation values variable variables various verify version versions virtual warning warnings website whatever whenever
wherever whitespace window windows without working works world would writing written yourself
""")
